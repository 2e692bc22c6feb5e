"""Grippers and boxes that no setting was chosen with: drawn sizes, masses, friction, starts; `solvers.solve(problem)`.

    python benchmarks/random_grippers.py --seeds 20
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.tree_util import Partial  # noqa: E402
from measure import banner  # noqa: E402

from trajopt import load_model, problems, solvers  # noqa: E402
from trajopt.dynamics import System  # noqa: E402

SCENE = """<mujoco><worldbody><geom type="plane" size="5 5 1" friction="{mu}"/>
<body pos="0 0 {start}"><joint name="lift" type="slide" axis="0 0 1" damping="{damping}"/>
<geom type="box" size="0.1 0.01 0.01" pos="0 0 0.25" mass="0.5" contype="0" conaffinity="0"/>
<body><joint name="left" type="slide" axis="1 0 0" damping="{damping}"/>
<geom type="box" size="0.01 0.02 {tall}" pos="-{left} 0 0" mass="{finger}" friction="{mu}"/></body>
<body><joint name="right" type="slide" axis="1 0 0" damping="{damping}"/>
<geom type="box" size="0.01 0.02 {tall}" pos="{right} 0 0" mass="{finger}" friction="{mu}"/></body></body>
<body pos="0 0 {high}"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
<joint name="pitch" axis="0 1 0"/><geom type="box" size="{wide} {deep} {high}" mass="{mass}" friction="{mu}"/></body>
</worldbody><actuator><motor joint="lift" ctrlrange="-30 30"/><motor joint="left" ctrlrange="-15 15"/>
<motor joint="right" ctrlrange="-15 15"/></actuator></mujoco>"""
RANGES = {
    "wide": (0.015, 0.05), "deep": (0.02, 0.05), "high": (0.02, 0.06), "mass": (0.05, 1.0), "mu": (0.4, 1.2),
    "tall": (0.02, 0.04), "finger": (0.05, 0.3), "damping": (0.5, 3.0),
}  # fmt: skip
STEPS, TOLERANCE = 50, 0.02  # m


def drawn(seed: int, folder: Path) -> tuple[System, float]:
    """The system of a seed and the height to which its box is to be lifted, m; the fingers begin 1 to 5 cm beside it."""
    generator = np.random.default_rng(seed)
    numbers = {name: generator.uniform(*ends) for name, ends in RANGES.items()}
    beside = {side: numbers["wide"] + 0.01 + generator.uniform(0.01, 0.05) for side in ("left", "right")}
    start, lift = numbers["tall"] + generator.uniform(0.01, 0.04), generator.uniform(0.08, 0.25)
    path = folder / f"{seed}.xml"
    path.write_text(SCENE.format(start=start, **numbers, **beside))
    return System(load_model(path), float(generator.uniform(0.02, 0.05))), lift


def running(lift, share, x, u, t):
    return jnp.concatenate([3 * share * (x.q[4:5] - lift), 0.1 * share * x.v, 0.05 * share * u])


def final(lift, x):
    return jnp.concatenate([30 * (x.q[4:5] - lift), x.v])


def height(lift, x):
    return x.q[4:5] - lift


def missed(system: System, us: np.ndarray, lift: float) -> float:
    """How far from its height the box ends, m, in steps taken one by one."""
    x = system.initial_state()
    for u in us:
        x = system.step(x, u)[0]
    return abs(float(np.asarray(x.q)[4]) - lift)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    arguments = parser.parse_args()
    print(banner().replace(", one pinned", ""))
    met, folder = 0, Path(tempfile.mkdtemp())
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        system, lift = drawn(seed, folder)
        problem = problems.OptimalControlProblem(
            "lift", system, STEPS, system.initial_state(),
            stage_residual=Partial(running, jnp.asarray(lift), jnp.sqrt(system.dt)),
            terminal_residual=Partial(final, jnp.asarray(lift)),
            goals={"height": problems.Goal(Partial(height, jnp.asarray(lift)), TOLERANCE, "m")},
        )  # fmt: skip
        begin = time.process_time()
        solution = solvers.solve(problem)
        seconds, left = time.process_time() - begin, missed(system, solution.us, lift)
        met += solution.success
        assert solution.success == (left <= TOLERANCE), (seed, left)
        how = f"{solution.iterations} iterations, {seconds:.0f} s of processor time"
        print(f"seed {seed}: success {solution.success}, {left:.2g} m; {how}", flush=True)
    print(f"{met} of {arguments.seeds}")


if __name__ == "__main__":
    main()
