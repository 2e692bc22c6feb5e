"""Where a step of the compiled core spends its time, by stage, beside MuJoCo's own timers: robots that fall and then lie.

    python benchmarks/profile_stages.py [--models Go2,G1] [--first 0] [--steps 500] [--repeat 20] [--jacobian]

The samples of `perf record` (Linux) over the steps from `--first` on are counted by the function they are in; what a compiler has
inlined counts for its caller. Shares are of the core's samples, percent; MuJoCo's timers those of the same fall of its own.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

from measure import banner, markdown, pin_to_one_core

STAGES = {
    "dynamics": r"kinematics|velocit|bias_forces|accumulate|mass_matrix|factorise<|invert<|solve_mass|free_|gyroscopic|integrate",
    "broad phase": r"pair_candidates|sharpen|fastest_|box_bound|place_shapes|move_shapes|mark_missed|plane_candidates|lowest_of",
    "narrow phase": r"touches|convex|Convex|Hull|hull|patch|best_row|stationary|closest|separating|deepest|Polytope|overlap"
                    r"|support|boxes|box_|capsule|sphere|cylinder|mesh_|polygon|direction|edge|facet|segment",
    "derivative": r"linearize|derivative|slopes|jacobian|turning|law_solution|motion|curvature_of|closure|wrench|moving",
    "assembly": r"begin_rows|choose|rows_of|assemble|contact_rows|equality|keep_if|sort|offset_of",
    "selection": r"select|curvature|null_space|eliminat|clear_below|if_lawful|share_of_eps|slow_contacts",
    "solve": r"Search|newton|Newton|factor|solve|combine|evaluate|natural|Path|sweep|law_matrix|clear_column|in_modes|gather"
             r"|refine|velocity_scale|scaled|residual|settle|line_search|polish",
    "report": r"report|write_impulses",
}  # fmt: skip
TIMERS = ("mjTIMER_POSITION", "mjTIMER_VELOCITY", "mjTIMER_ACTUATION", "mjTIMER_CONSTRAINT", "mjTIMER_POS_COLLISION")


def falls(names: list[str], first: int, steps: int, repeat: int, jacobian: bool) -> None:
    """What is recorded: steps `first` to `first + steps` of each robot's fall, again and again."""
    pin_to_one_core()
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    from dropped_scenes import put_down
    from published_robots import model_of

    from trajopt.dynamics import State, System

    for name in names:
        model = model_of(name)
        system, u = System(model, 1e-3), jnp.zeros(model.nu)
        rollout = jax.jit(
            lambda x, n, system=system, u=u: jax.lax.scan(lambda x, _: (system.step(x, u)[0], None), x, None, n)[0],
            static_argnums=1,
        )

        def linearized(x, _, system=system, u=u):
            found = system.linearize(x, u)
            return found.x_next, found.A[0, 0]

        both = jax.jit(lambda x, steps=steps: jax.lax.scan(linearized, x, None, steps))
        x = State(jnp.asarray(put_down(model, np.array(model.q_default, float))), jnp.zeros(model.nv))
        x = rollout(x, first)
        for _ in range(repeat):
            jax.block_until_ready(both(x) if jacobian else rollout(x, steps))


def shares(name: str, options: argparse.Namespace) -> list[float]:
    """Percent of the core's samples in each stage, and in what has no stage."""
    with tempfile.TemporaryDirectory() as folder:
        data = str(pathlib.Path(folder) / "perf.data")
        child = [
            sys.executable,
            __file__,
            "--child",
            "--models",
            name,
            "--first",
            str(options.first),
            "--steps",
            str(options.steps),
        ]
        child += ["--repeat", str(options.repeat), *(["--jacobian"] if options.jacobian else [])]
        subprocess.run(["perf", "record", "-q", "-F", "4000", "-o", data, *child], check=True, capture_output=True)
        command = ["perf", "report", "-i", data, "--stdio", "--no-children", "-g", "none", "--sort", "dso,sym"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    counts = dict.fromkeys((*STAGES, "other"), 0.0)
    for share, symbol in re.findall(r"^\s*([\d.]+)%\s+trajopt_native\S*\s+\[\.\]\s+(.*)$", text, re.MULTILINE):
        plain = re.sub(r"trajopt::avx\w+::|\(anonymous namespace\)::", "", symbol).split("(")[0]
        stage = next((stage for stage, pattern in STAGES.items() if re.search(pattern, plain)), "other")
        counts[stage] += float(share)
    total = sum(counts.values())
    return [100 * count / total for count in counts.values()]


def mujocos(name: str, options: argparse.Namespace) -> list[float]:
    """Percent of MuJoCo's step under each of its timers; none where it does not read the file."""
    import time

    import dropped_peer
    import mujoco
    import numpy as np
    from dropped_scenes import put_down
    from published_robots import PUBLISHED, folder, model_of

    model = model_of(name)
    q = put_down(model, np.array(model.q_default, float))
    try:
        peer, start = dropped_peer.compiled(folder() / PUBLISHED[name], folder(), model, q)
    except dropped_peer.Unreadable:
        return []
    peer.opt.timestep = 1e-3
    data = mujoco.MjData(peer)
    data.qpos[:] = start
    mujoco.set_mjcb_time(lambda: time.perf_counter() * 1e6)
    for _ in range(options.first):
        mujoco.mj_step(peer, data)
    for timer in range(mujoco.mjtTimer.mjNTIMER):
        data.timer[timer].duration = 0
    for _ in range(options.steps):
        mujoco.mj_step(peer, data)
    whole = data.timer[mujoco.mjtTimer.mjTIMER_STEP].duration
    return [100 * data.timer[getattr(mujoco.mjtTimer, timer)].duration / whole for timer in TIMERS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", help="names, separated by commas; all by default")
    parser.add_argument("--first", type=int, default=0, help="step of the fall with which to begin")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--jacobian", action="store_true", help="linearise every step")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    from published_robots import PUBLISHED

    names = options.models.split(",") if options.models else list(PUBLISHED)
    if options.child:
        return falls(names, options.first, options.steps, options.repeat, options.jacobian)
    print(banner("mujoco", "example-robot-data"))
    rows = []
    for name in names:
        rows.append((name, *(f"{share:.0f}" for share in shares(name, options) + mujocos(name, options))))
        print(*rows[-1], flush=True)
    print(markdown(("percent", *STAGES, "other", *(timer.removeprefix("mjTIMER_").lower() for timer in TIMERS)), rows))
    return None


if __name__ == "__main__":
    main()
