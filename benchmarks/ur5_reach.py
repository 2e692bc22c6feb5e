"""How often does iLQR reach a random place with a UR5, from a random posture and zero controls?

    python benchmarks/ur5_reach.py                    # 20 draws under each cost, iLQR and its defaults
    python benchmarks/ur5_reach.py --draws 5 --solver DDP

One second, 50 steps, the place of the tool at the end a terminal equality. Costs: "damped", effort, joint rates and margins to
joint limits; "effort", the torques alone, under which an arm without torques falls and whirls. Starting postures are the home
keyframe plus uniform offsets within +-0.5 rad; places are where the tool is at postures drawn likewise, within +-1 rad of home
and above the base, so that each can be reached. A run succeeds with status `solved`.
"""

import argparse
import dataclasses
import functools

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from jaxtyping import Float  # noqa: E402

from trajopt import solvers  # noqa: E402
from trajopt.dynamics import NoContact, System  # noqa: E402
from trajopt.dynamics.rigid_body.kinematics import frame_placement  # noqa: E402
from trajopt.models import load_model  # noqa: E402
from trajopt.problems import OptimalControlProblem, residuals  # noqa: E402
from trajopt.result import status_name  # noqa: E402

SEED, DRAWS, STEPS, DT = 0, 20, 50, 0.02
COSTS = ("damped", "effort")


@dataclasses.dataclass(frozen=True)
class Reach:
    """A posture at rest to start from (nq,), and the place of the tool to end at (3,), m."""

    start: Float[np.ndarray, " nq"]
    place: Float[np.ndarray, " 3"]


@functools.cache
def system() -> System:
    """The arm."""
    return System(load_model("ur5"), DT, NoContact())


def draws(count: int = DRAWS, seed: int = SEED) -> list[Reach]:
    """`count` reaches."""
    rng, model = np.random.default_rng(seed), system().model
    home = np.asarray(model.keyframes["home"])
    found: list[Reach] = []
    while len(found) < count:
        start, end = home + rng.uniform(-0.5, 0.5, home.size), home + rng.uniform(-1.0, 1.0, home.size)
        place = np.asarray(frame_placement(model, end, "tool")[1])
        if place[2] > 0.1:
            found.append(Reach(start, place))
    return found


@functools.cache
def template(cost: str) -> OptimalControlProblem:
    """The problem, whose start and place `stated` replaces."""
    effort = residuals.Control(weight=2e-3)
    terms = [effort, residuals.Velocity(weight=0.1), residuals.LimitMargin(weight=0.1)]
    damped = cost == "damped"
    return OptimalControlProblem(
        f"ur5-reach-{cost}", system(), STEPS, system().initial_state("home"), u0=np.zeros(6),
        stage_residual=sum(terms) if damped else sum([effort]),
        terminal_residual=residuals.Velocity(weight=1.0) if damped else None,
        terminal_equality=residuals.FramePosition("tool", reference=[0.4, 0.3, 0.5]),
    )  # fmt: skip


def stated(cost: str, reach: Reach) -> OptimalControlProblem:
    """The problem of one draw."""
    x0 = np.concatenate([reach.start, np.zeros(6)])
    return template(cost).replace(x0=x0, references={"frame position tool": reach.place})


def main() -> None:
    """Print the share that is solved, and the iterations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--solver", default="iLQR")
    parser.add_argument("--costs", nargs="+", default=list(COSTS), choices=COSTS)
    parser.add_argument("--verbose", action="store_true", help="print every run")
    options = parser.parse_args()
    solver = solvers.get(options.solver)
    print("| cost | solved | iterations, median | worst | seconds, median |\n|---|---|---|---|---|")
    for cost in options.costs:
        runs = [solvers.solve(stated(cost, reach), solver) for reach in draws(options.draws, options.seed)]
        solved = [run for run in runs if run.success]
        if options.verbose:
            for k, run in enumerate(runs):
                fastest = np.abs(run.xs[:, 6:]).max()
                print(f"  {k} {status_name(run.status)} {run.iterations} cost {run.cost:.4g} fastest {fastest:.3g}")
        counts, times = [run.iterations for run in solved], [run.wall_time_s for run in solved]
        worst = max(counts, default=0)
        middle = f"{np.median(counts):.0f} | {worst} | {np.median(times):.2f}" if solved else "- | - | -"
        print(f"| {cost} | {len(solved)} of {len(runs)} | {middle} |", flush=True)


if __name__ == "__main__":
    main()
