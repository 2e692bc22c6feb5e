"""Policies: samples and wall time to learn a task, by PPO and by SHAC in several gradient modes; samples per second; transfer.

    python benchmarks/bench_policies.py --tasks cartpole-swingup --seeds 5 [--algorithms PPO,SHAC] [--gradients implicit,smoothed]
                                        [--samples N] [--evaluations N] [--episodes N] [--stop] [--out DIR] [--json FILE]
                                        [--transfer] [--policies DIR]
    python benchmarks/bench_policies.py --push-recovery [--policy FILE --algorithms SHAC]
    python benchmarks/bench_policies.py --draw FILE,FILE --out DIR
    python benchmarks/bench_policies.py [--samples-per-second] [--environments 64]

A line a run: samples and seconds (compiling apart) until an evaluation first had 95 % of successes, the last return and share of
successes; then a table of medians and quartiles over the seeds. Curves by samples and by wall time are in FILE and in
DIR/curve.png. --samples: of every run, default what suits task and algorithm; --stop: end a run there where the task is
reached. SHAC runs once a gradient mode. --transfer: success rates in our steps, with masses and friction drawn anew, and in
MuJoCo on the same file. --push-recovery: share of random pushes survived. --samples-per-second: the environments of hopper and
half-cheetah under random actions, one at a time and in a batch, beside gymnasium's MuJoCo environment of the same robot
(MuJoCo's soft contact, Python's loop; both in one run). Two cores, whatever else runs on them: times are upper bounds.
"""

import argparse
import json
import pathlib
import statistics
import time

from measure import banner, markdown

CURVE = ("samples", "wall_time_s", "return", "success_rate")
SUMMARY = ("samples_to_success", "seconds_to_success", "return")
RUNS = [("PPO", "implicit"), ("SHAC", "implicit"), ("SHAC", "smoothed")]


def one_run(name: str, algorithm: str, gradient: str, seed: int, args: argparse.Namespace) -> dict:
    """The record of one training, with its curve."""
    from trajopt import learning

    task = learning.tasks.task(name)
    environment = learning.tasks.environment(name).with_gradient(gradient)
    chosen = learning.algorithm(algorithm, name)
    training = learning.train(
        environment, chosen, samples=args.samples or task.samples[algorithm], seed=seed, evaluations=args.evaluations,
        episodes=args.episodes, stop_when_solved=args.stop,
    )  # fmt: skip
    if args.policies:
        args.policies.mkdir(parents=True, exist_ok=True)
        learning.save_policy(args.policies / f"{name}-{algorithm}-{gradient}-{seed}.npz", training.policy)
    reached = next((row for row in training.evaluations if row["success_rate"] >= 0.95), None)
    last = training.evaluations[-1]
    return {
        "task": name, "algorithm": algorithm, "gradient": gradient, "seed": seed, "samples": training.curve[-1]["samples"],
        "samples_to_success": reached and reached["samples"], "seconds_to_success": reached and reached["wall_time_s"],
        "return": last["return"], "success_rate": last["success_rate"], "wall_s": training.wall_time_s,
        "best_return": max(row["return"] for row in training.evaluations), "compile_s": training.compile_time_s,
        "transfer": transferred(environment, training.policy, task.model) if args.transfer else [],
        "curve": [{key: row[key] for key in CURVE} for row in training.evaluations],
    }  # fmt: skip


OTHERS = {"mass": (0.8, 1.2), "pair_friction": (0.6, 1.5)}  # factors that an episode's model is drawn from


def transferred(environment, policy, model: str, episodes: int = 16) -> list[dict]:
    """Success rates of a policy in our steps, under other parameters, and in MuJoCo at our step and at a fifth of it."""
    from trajopt.learning.transfer import elsewhere, in_mujoco
    from trajopt.models import bundled_file

    path, dt = bundled_file(model), float(environment.system.dt)
    trials = [elsewhere(environment, policy, episodes=64, seed=100)]
    if environment.system.contact.acts:
        trials.append(elsewhere(environment, policy, factors=OTHERS, episodes=64, seed=100))
    else:
        trials.append(elsewhere(environment, policy, factors={"mass": OTHERS["mass"]}, episodes=64, seed=100))
    trials += [in_mujoco(environment, policy, path, episodes=episodes, seed=100, dt=step) for step in (dt, dt / 5)]
    for trial in trials:
        print(f"    {trial}", flush=True)
    keys = ("where", "success_rate")
    return [{key: getattr(trial, key) for key in keys} | {"episodes": len(trial.success)} for trial in trials]


def push_recovery(args: argparse.Namespace) -> list[dict]:
    """Share of random pushes that the humanoid survives under its PD controller, and under a saved policy where --policy names
    one."""
    from trajopt import learning
    from trajopt.learning.transfer import elsewhere, in_mujoco, zero_policy
    from trajopt.models import bundled_file

    environment = learning.tasks.environment("humanoid-push")
    policies = {"PD controller": zero_policy(environment)}
    if args.policy:
        made = learning.algorithm(args.algorithms.split(",")[0], "humanoid-push")
        policies["policy"] = learning.load_policy(args.policy, environment, made)
    records = []
    for name, policy in policies.items():
        path = bundled_file("humanoid")
        for trial in (elsewhere(environment, policy, episodes=128), in_mujoco(environment, policy, path, episodes=32)):
            print(f"{name}, {trial}", flush=True)
            records.append({"policy": name, "where": trial.where, "survived": trial.success_rate, "pushes": len(trial.success)})
    return records


def shown(record: dict) -> str:
    """A line about a run."""
    to = record["samples_to_success"]
    when = "not reached" if to is None else f"reached after {to:,} samples, {record['seconds_to_success']:.0f} s"
    return (
        f"{record['task']:<18} {record['algorithm']:<5} {record['gradient']:<22} seed {record['seed']}: {when}; "
        f"at {record['samples']:,} samples return {record['return']:.4g}, successes {record['success_rate']:.0%} "
        f"({record['wall_s']:.0f} s, compiling {record['compile_s']:.0f} s)"
    )


def quartiles(values: list) -> str:
    """median (lower, upper quartile); of those that are known, with their number."""
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    parts = [known[0]] * 3 if len(known) == 1 else statistics.quantiles(known, n=4, method="inclusive")
    text = f"{parts[1]:,.4g} ({parts[0]:,.4g}, {parts[2]:,.4g})"
    return text if len(known) == len(values) else f"{text}, {len(known)} of {len(values)}"


def trainings(args: argparse.Namespace) -> list[dict]:
    """All runs asked for, printed as they end, kept as they end."""
    records = []
    for name in args.tasks.split(","):
        for algorithm, gradient in RUNS:
            first = gradient == "implicit" and algorithm == "PPO"
            if algorithm not in args.algorithms.split(",") or (not first and gradient not in args.gradients.split(",")):
                continue
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                records.append(one_run(name, algorithm, gradient, seed, args))
                print(shown(records[-1]), flush=True)
                if args.json:
                    args.json.write_text(json.dumps({"machine": banner("equinox", "optax"), "runs": records}, indent=1) + "\n")
    groups: dict[tuple, list[dict]] = {}
    for record in records:
        groups.setdefault((record["task"], record["algorithm"], record["gradient"]), []).append(record)
    rows = [
        (*key, len(group), *(quartiles([r[what] for r in group]) for what in SUMMARY))
        for key, group in groups.items()
    ]
    print(markdown(("task", "algorithm", "gradient", "seeds", "samples to 95 %", "seconds to 95 %", "last return"), rows))
    return records


def draw(records: list[dict], path: pathlib.Path) -> None:
    """Returns against samples and against wall time: a line a run, a row a task."""
    from trajopt.viz.plots import COLOURS, figure

    tasks = sorted({r["task"] for r in records})
    picture, panels = figure(len(tasks), 2, 5.0, 3.5)
    labelled = (("samples", "samples"), ("wall_time_s", "wall time, s, without compiling"))
    for row, name in zip(panels, tasks, strict=True):
        runs = [record for record in records if record["task"] == name]
        kinds = sorted({way(record) for record in runs})
        for axes, (key, label) in zip(row, labelled, strict=True):
            shown: set[str] = set()
            for record in runs:
                kind, curve = way(record), record["curve"]
                axes.plot(
                    [at[key] for at in curve], [at["return"] for at in curve], color=COLOURS[kinds.index(kind) % len(COLOURS)],
                    label=None if kind in shown else kind, linewidth=1.0,
                )  # fmt: skip
                shown.add(kind)
            values = [at[key] for record in runs for at in record["curve"]]
            axes.set(xlabel=label, ylabel="return", xscale="log" if max(values) > 100 * min(values) else "linear", title=name)
        row[0].legend(fontsize=8)
    picture.savefig(path, dpi=120)


def way(record: dict) -> str:
    """What learnt: the algorithm, and the gradient mode where it has one."""
    return record["algorithm"] if record["algorithm"] == "PPO" else f"{record['algorithm']}, {record['gradient']}"


PEERS = {"hopper": "Hopper-v5", "half-cheetah": "HalfCheetah-v5"}


def samples_per_second(environments: int) -> list[dict]:
    """Actions of a second, under random actions: ours in a batch inside one program, and one by one through gymnasium's
    interface;
    gymnasium's MuJoCo environment one by one."""
    import gymnasium
    import jax
    import jax.numpy as jnp

    from trajopt import learning
    from trajopt.learning.gymnasium_environments import GymnasiumEnvironment

    records = []
    for name, peer in PEERS.items():
        environment = learning.tasks.environment(name)
        theirs = gymnasium.make(peer).unwrapped
        single, theirs_rate = one_by_one(GymnasiumEnvironment(environment)), one_by_one(theirs)

        def roll(key, states, environment=environment):
            def body(states, own):
                actions = jax.random.uniform(own, (environments, environment.na), environment.dtype, -1.0, 1.0)
                states, _, outcome = jax.vmap(environment.step_or_reset)(states, actions)
                return states, outcome.reward

            return jax.lax.scan(body, states, jax.random.split(key, 200))

        key = jax.random.PRNGKey(0)
        states, _ = jax.jit(jax.vmap(environment.reset))(jax.random.split(key, environments))
        program = jax.jit(roll).lower(key, states).compile()
        times = []
        for _ in range(4):
            start = time.perf_counter()
            jax.block_until_ready(program(key, states))
            times.append(time.perf_counter() - start)
        batched = 200 * environments / statistics.median(times[1:])
        substeps = {"ours": environment.substeps, "theirs": theirs.frame_skip}
        records.append({
            "robot": name, "batch": environments, "batched_per_s": batched, "single_per_s": single,
            "gymnasium_per_s": theirs_rate, "ratio": batched / theirs_rate, "substeps": substeps,
            "dt": {"ours": environment.dt, "theirs": float(theirs.dt)},
            "finite": bool(jnp.isfinite(program(key, states)[1]).all()),
        })  # fmt: skip
    peer = f"gymnasium {gymnasium.__version__}, /s"
    head = ("robot", f"batch of {environments}, /s", "one by one, /s", peer, "batch over gymnasium")
    rows = [(r["robot"], r["batched_per_s"], r["single_per_s"], r["gymnasium_per_s"], r["ratio"]) for r in records]
    print(markdown(head, rows))
    print("steps of the simulation an action, and seconds:", {r["robot"]: (r["substeps"], r["dt"]) for r in records})
    return records


def one_by_one(environment, count: int = 2000) -> float:
    """Actions of a second through gymnasium's interface, resets included; median of three."""
    environment.action_space.seed(0)
    actions = [environment.action_space.sample() for _ in range(count)]
    rates = []
    for _ in range(4):
        environment.reset(seed=0)
        start = time.perf_counter()
        for action in actions:
            *_, terminated, truncated, _ = environment.step(action)
            if terminated or truncated:
                environment.reset()
        rates.append(count / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--algorithms", default="PPO,SHAC")
    parser.add_argument("--gradients", default="implicit")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--evaluations", type=int, default=50, help="of a run, each of --episodes")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--stop", action="store_true")
    parser.add_argument("--transfer", action="store_true", help="play each policy in MuJoCo and under other parameters")
    parser.add_argument("--draw", help="files written by --json, separated by commas: their curves, into --out, and nothing else")
    parser.add_argument("--policies", type=pathlib.Path, help="a folder for the policies")
    parser.add_argument("--push-recovery", action="store_true")
    parser.add_argument("--policy", type=pathlib.Path, help="of --push-recovery, made by the first of --algorithms")
    parser.add_argument("--samples-per-second", action="store_true")
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if args.draw and args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        kept = [json.loads(pathlib.Path(file).read_text())["runs"] for file in args.draw.split(",")]
        draw([run for runs in kept for run in runs], args.out / "curve.png")
        return
    if args.tasks is None and not (args.samples_per_second or args.push_recovery):
        args.samples_per_second = True  # the quickest of what is measured here, for `make bench`
    import jax

    jax.config.update("jax_enable_x64", True)
    print(banner("equinox", "optax", "gymnasium", "mujoco").replace(", one pinned", ""))
    if args.samples_per_second:
        rates = samples_per_second(args.environments)
        if args.json and args.tasks is None:
            args.json.write_text(json.dumps({"machine": banner("gymnasium", "mujoco"), "rates": rates}, indent=1) + "\n")
    if args.push_recovery:
        push_recovery(args)
    if args.tasks is not None:
        records = trainings(args)
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            draw(records, args.out / "curve.png")


if __name__ == "__main__":
    main()
