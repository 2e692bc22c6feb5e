"""The behaviours of the library: found from how many seeds, in which time, with which quantities, and what replays of them do.

    python benchmarks/bench_behaviours.py [--behaviours go1-jump,go1-trot] [--seeds 5] [--first 0] [--no-replay] [--replay-all]
                                          [--json FILE]

Each behaviour is solved with its default solver from each seed. A line a seed: status, seconds of compiling, of solving by the
wall's clock and of the processor (of all threads, compiling included), the quantities that the certificate names. Then the
replays of the first motion that is one, of the first seed where none is, or with --replay-all of every one that is: one rollout,
half the step, and MuJoCo at steps of 0.5, 1, 2 and 4 ms with its own softened contact, by the controls alone and with the joints'
feedback (Atlas: the solver's gains); "holds" says that the quantities of the replayed motion are within the limits of the
certificate (but for torques and the replay's own error).
"""

import argparse
import json
import time

from measure import banner

# Feedback of the joints in replays, N m/rad and N m s/rad.
FEEDBACK = {"go1": (80.0, 1.0), "half-cheetah": (100.0, 4.0), "hopper": (400.0, 30.0)}
BEHAVIOURS = ("go1-jump", "go1-backflip", "go1-trot", "h1-step", "half-cheetah-sprint", "hopper-hops", "atlas-jump-landing")
STANDING = 1.0  # s, for which go1-backflip is to stand after its end, with the joints' feedback all the time
NOT_OF_A_REPLAY = ("replay_error", "torque_use")


def solved(name: str, seed: int) -> tuple[object, object, dict]:
    """(problem, solution, record) of one seed."""
    from trajopt import problems, solvers
    from trajopt.result import status_name
    from trajopt.solvers.registry import chosen_solver

    problem = problems.get(name)
    processor = time.process_time()
    solution = solvers.solve(problem, chosen_solver(problem, problem.defaults.solver), seed=seed)
    record = {
        "behaviour": name,
        "seed": seed,
        "status": status_name(solution.status),
        "success": solution.success,
        "message": solution.message,
        "compile_s": round(solution.compile_time_s, 1),
        "wall_s": round(solution.wall_time_s, 1),
        "processor_s": round(time.process_time() - processor, 1),
        "iterations": solution.iterations,
        "cost": solution.cost,
        "quantities": {key: float(value) for key, value in solution.residuals.items()},
    }
    return problem, solution, record


def missed(problem, values: dict) -> list[str]:
    """The limits of the certificate that a replayed motion does not keep."""
    limits = {k: v for k, v in problem.certificate.tolerances.items() if k not in NOT_OF_A_REPLAY}
    return [f"{key} {values[key]:.3g}" for key, limit in limits.items() if not values[key] <= limit]


def replays(problem, solution) -> list[dict]:
    """Records of all replays of a solution, printed."""
    import numpy as np

    from trajopt.control.replay import replay_motion, table
    from trajopt.control.tracking import joint_gains
    from trajopt.models import bundled_file
    from trajopt.problems.trajectory import Trajectory

    model = problem.system.model.name
    options: dict = {"policy": True}  # the gains of the solution, where joints are too light for stiff feedback
    if problem.name == "go1-backflip":
        K = joint_gains(problem.system.model, *FEEDBACK["go1"])
        options = {"gains": np.broadcast_to(K, (problem.horizon, *K.shape)), "hold": STANDING}
    elif problem.name == "h1-step":
        from trajopt.problems.library.h1_step import leg_targets

        targets = leg_targets(problem.system.model, problem.dt * problem.horizon)
        options = {"stiffness": targets.stiffness, "damping": targets.damping}
    elif model in FEEDBACK:
        options = {"stiffness": FEEDBACK[model][0], "damping": FEEDBACK[model][1]}
    found = replay_motion(problem, solution, model_file=str(bundled_file(model)), **options)
    records = []

    def quantities(replay) -> dict:
        values = problem.certificate.function(Trajectory(replay.xs, replay.us, problem.parameters))
        short = missed(problem, values)
        records.append({"plant": replay.plant, "dt": replay.dt, "feedback": replay.feedback, "follows": replay.follows,
                        "end": float(replay.drift[-1]), "error": replay.error, "missed": short, "quantities": values})
        return {"holds": "yes"} if not short else {"misses": ", ".join(short)}

    print(table(found, quantities))
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--behaviours", default=",".join(BEHAVIOURS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--no-replay", action="store_true")
    parser.add_argument("--replay-all", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    print(banner())
    everything = []
    for name in args.behaviours.split(","):
        found = []
        for seed in range(args.first, args.first + args.seeds):
            problem, solution, record = solved(name, seed)
            everything.append(record)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in record["quantities"].items())
            print(f"\n{name}, seed {seed}: {record['message']}; compile {record['compile_s']} s, wall {record['wall_s']} s, "
                  f"processor {record['processor_s']} s, {record['iterations']} iterations\n  {shown}", flush=True)  # fmt: skip
            found.append((seed, problem, solution))
        motions = [each for each in found if each[2].success]
        print(f"\n{name}: {len(motions)} of {args.seeds} seeds")
        for seed, problem, solution in [] if args.no_replay else (motions or found)[: None if args.replay_all else 1]:
            print(f"\nreplays of seed {seed}")
            everything.append({"behaviour": name, "seed": seed, "replays": replays(problem, solution)})
    if args.json:
        with open(args.json, "w") as stream:
            json.dump(everything, stream, indent=1)


if __name__ == "__main__":
    main()
