"""A task solved again from other initial states: what is compiled, and what an iteration takes.

    python benchmarks/bench_resolving.py [--states 20] [--seed 0]

The UR5's reach and the Go1 that sits down of docs/tasks.md, each solved by iLQR from its own initial state and then, by
`problem.replace(x0=...)`, from others: joints moved by up to 0.2 rad (Go1: velocities of up to 0.1 m/s and rad/s, the feet
staying on the ground). One pinned core. An iteration's time is the median over those of a solve; of the other solves the median,
least and largest of these. First solves are made twice: the first program that runs fills caches that the others find full.
"""

import argparse
import statistics

from measure import banner, begin, markdown

HEAD = ("task", "solve", "compiling, s", "programs", "solved", "iterations", "ms an iteration", "solving, ms", "of the first")


def reach():
    """(problem, solver, size of the changes of (q, v)) of an arm."""
    import trajopt
    from trajopt import solvers
    from trajopt.dynamics import NoContact, System
    from trajopt.problems import OptimalControlProblem
    from trajopt.problems import residuals as r

    arm = System(trajopt.load_model("ur5"), dt=0.02, contact=NoContact())
    stage = sum([r.Control(weight=2e-3), r.Velocity(weight=0.1), r.LimitMargin(weight=0.1)])
    final = sum([r.FramePosition("tool", reference=[0.4, 0.3, 0.5], weight=100.0), r.Velocity(weight=1.0)])
    x0 = arm.initial_state("home")
    problem = OptimalControlProblem("reach", arm, 50, x0, stage_residual=stage, terminal_residual=final)
    return problem, solvers.iLQR(), (0.2, 0.0)


def sit():
    """The same of Go1, whose feet stay on the ground."""
    import numpy as np

    import trajopt
    from trajopt import problems, solvers
    from trajopt.dynamics import RigidContact, State, System
    from trajopt.problems import OptimalControlProblem
    from trajopt.problems import residuals as r

    pose = np.asarray(problems.get("go1-stand").display.motion(np.zeros(12))["q"][0])
    dog = System(trajopt.load_model("go1"), dt=0.02, contact=RigidContact(), implicit_damping=True)
    legs = [leg.name for leg in dog.model.topology.joints[1:]]
    stage = sum([r.Control(weight=5e-3), r.Velocity(weight=0.05), r.Posture(legs, reference=pose, weight=0.2)])
    low = r.CentreOfMass(reference=pose[:3] - [0.0, 0.0, 0.05], weight=100.0)
    final = sum([low, r.FrameOrientation("trunk", weight=20.0), r.Velocity(weight=2.0)])
    problem = OptimalControlProblem("sit", dog, 25, State(pose, np.zeros(18)), stage_residual=stage, terminal_residual=final)
    return problem, solvers.iLQR(tolerance=1e-3), (0.0, 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=20, help="other initial states of each task")
    parser.add_argument("--seed", type=int, default=0)
    options = begin(parser)
    import jax
    import numpy as np

    from trajopt import solvers

    lowered = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: lowered.append(event) if event.endswith("jaxpr_to_mlir_module_duration") else None
    )

    def solve(problem, solver):
        before = len(lowered)
        found = solvers.solve(problem, solver)
        return found, 1e3 * float(np.median(np.diff(found.trace["time"]))), len(lowered) - before

    print(banner("trajopt"))
    rows = []
    for make in (reach, sit):
        problem, solver, (of_q, of_v) = make()
        rng, nq = np.random.default_rng(options.seed), problem.system.nq
        compiling, _, programs = solve(problem, solver)
        first, each, _ = solve(problem, solver)
        rows.append((problem.name, "first", round(compiling.compile_time_s, 1), programs, first.success, first.iterations, each,
                     1e3 * first.wall_time_s, ""))  # fmt: skip
        again = []
        for _ in range(options.states):
            change = np.concatenate([of_q * rng.uniform(-1, 1, nq), of_v * rng.uniform(-1, 1, problem.nx - nq)])
            again.append(solve(problem.replace(x0=problem.x0 + change), solver))
        times, walls = [ms for _, ms, _ in again], [1e3 * found.wall_time_s for found, _, _ in again]
        iterations = [found.iterations for found, _, _ in again]
        compiled = sum(found.compile_time_s for found, _, _ in again), sum(n for _, _, n in again)
        rows.append((
            problem.name, f"{options.states} others", *compiled,
            sum(found.success for found, _, _ in again), f"{min(iterations)} to {max(iterations)}",
            f"{statistics.median(times):.3g} ({min(times):.3g} to {max(times):.3g})", statistics.median(walls),
            f"{statistics.median(times) / each:.2f}x",
        ))  # fmt: skip
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
