"""SHAC on `quadruped-walk` by contact law, each policy tried under hard contact and in MuJoCo; PPO; ANYmal under commands.

    python benchmarks/quadruped_table.py --out runs/quadruped [--contacts smoothed,hard,soft] [--seeds 10] [--first-seed 0]
                                         [--algorithm SHAC] [--updates 1000] [--double] [--slice SECONDS]
    python benchmarks/quadruped_table.py --out runs/anymal --task anymal-velocity --contacts smoothed --seeds 1 --updates 20000
    python benchmarks/quadruped_table.py --out runs/quadruped --draw

Table 1 and figure 4 of Smoothed, with the settings of its Table 6. A training keeps its checkpoint in
DIR/ALGORITHM-CONTACT-SEED, and the same command goes on where it was ended; what is finished is not done again. Every policy
plays 100 episodes under its own law and under hard contact, and 16 in MuJoCo at the training's step and at a fifth of it; of
`anymal-velocity` 64, and record.json says by how much commands are missed, m/s and rad/s. The table has mean and standard
deviation over the seeds, of returns and of lengths of episodes. --slice: no training begins after so many seconds. --draw:
returns against samples and wall time of what is in DIR, as DIR/curve.png. Numbers are in single precision unless --double is
given.
"""

import argparse
import functools
import json
import pathlib
import statistics
import time

from measure import banner, markdown

RECORD = "record.json"
HEAD = (
    "algorithm", "trained with", "seeds", "return", "length, s", "return, hard", "length, hard, s", "MuJoCo", "MuJoCo, finer",
)  # fmt: skip


def trial_record(trial, environment) -> dict:
    """Means of the episodes of a trial; missed: of ANYmal's commands, m/s and rad/s."""
    import jax

    from trajopt.learning.tasks.velocity import misses

    missed = None
    if environment.name == "anymal-velocity":
        missed = jax.vmap(lambda xs, drawn: misses(xs, drawn, environment.dt))(trial.states, trial.drawn).mean(0).tolist()
    return {
        "missed": missed, "seconds": float(trial.steps.mean()) * environment.dt,
        "where": trial.where, "return": float(trial.returns.mean()), "steps": float(trial.steps.mean()),
        "successes": int(trial.success.sum()), "episodes": len(trial.success),
    }  # fmt: skip


def tried(environment, policy, contact: str) -> dict[str, dict]:
    """A policy under the law it was trained with, under hard contact and in MuJoCo."""
    from trajopt.learning.tasks import task
    from trajopt.learning.tasks.quadruped import CONTACTS
    from trajopt.learning.transfer import elsewhere, in_mujoco
    from trajopt.models import bundled_file

    own = elsewhere(environment, policy, episodes=100, seed=100)
    of_quadruped = environment.name == "quadruped-walk"
    hard = environment.with_contact(*CONTACTS["hard"]) if of_quadruped else environment.with_contact(CONTACTS["hard"][0])
    trials = {"own": own, "hard": own if contact == "hard" else elsewhere(hard, policy, episodes=100, seed=100)}
    path, episodes = bundled_file(task(environment.name).model), 16 if of_quadruped else 64
    for name, share in (("mujoco", 1.0), ("mujoco, finer", 0.2)):
        trials[name] = in_mujoco(hard, policy, path, episodes=episodes, seed=100, dt=share * float(hard.system.dt))
    return {name: trial_record(trial, environment) for name, trial in trials.items()}


def one_run(args: argparse.Namespace, contact: str, seed: int) -> dict:
    """The record of one training, from its folder where it is finished."""
    from trajopt import learning

    folder = args.out / f"{args.algorithm}-{contact}-{seed}"
    if (folder / RECORD).exists():
        return json.loads((folder / RECORD).read_text())
    chosen = learning.algorithm(args.algorithm, args.task)
    settings = {"contact": contact} if args.task == "quadruped-walk" else {}
    environment = learning.tasks.environment(args.task, **settings)
    training = learning.train(
        environment, chosen, samples=args.updates * chosen.samples, seed=seed, folder=folder, evaluations=20, episodes=32,
        resume=(folder / "checkpoint.npz").exists(), callback=functools.partial(show, environment.dt),
    )  # fmt: skip
    learning.save_policy(folder / "policy.npz", training.policy)
    record = {
        "algorithm": args.algorithm, "contact": contact, "seed": seed, "updates": args.updates, "wall_s": training.wall_time_s,
        "trials": tried(environment, training.policy, contact),
    }  # fmt: skip
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return record


def show(dt: float, row: dict) -> None:
    """Print a line about an evaluation; dt: s, of an action."""
    if row["return"] is not None:
        length, time_s = row["episode_steps"] * dt, row["wall_time_s"]
        print(f"  {row['samples']:>12,} samples  return {row['return']:8.1f}  length {length:5.2f} s  {time_s:.0f} s", flush=True)


def spread(values: list[float]) -> str:
    """mean +- standard deviation, of one value itself."""
    return f"{values[0]:.4g}" if len(values) == 1 else f"{statistics.mean(values):.4g} +- {statistics.stdev(values):.2g}"


def table(records: list[dict]) -> str:
    """A row for each algorithm and contact law."""
    rows = []
    for kind in dict.fromkeys((r["algorithm"], r["contact"]) for r in records):
        group = [r["trials"] for r in records if (r["algorithm"], r["contact"]) == kind]
        cells = [
            spread([trials[place][what] for trials in group]) for place in ("own", "hard") for what in ("return", "seconds")
        ]
        for place in ("mujoco", "mujoco, finer"):
            cells.append(", ".join(str(trials[place]["successes"]) for trials in group) + f" of {group[0][place]['episodes']}")
        rows.append((*kind, len(group), *cells))
    return markdown(HEAD, rows)


def evaluations(path: pathlib.Path) -> list[dict]:
    """The rows with an evaluation of a training's log."""
    return [row for row in map(json.loads, path.read_text().splitlines()) if row["return"] is not None]


def draw(out: pathlib.Path) -> None:
    """Returns against samples and against wall time, a line a training, finished or not."""
    from trajopt.viz.plots import COLOURS, figure

    picture, [panels] = figure(1, 2, 5.0, 3.5)
    kinds: dict[str, str] = {}
    for path in sorted(out.glob("*/curve.jsonl")):
        kind, rows = path.parent.name.rpartition("-")[0], evaluations(path)
        label = None if kind in kinds else ", ".join(kind.split("-"))
        colour = kinds.setdefault(kind, COLOURS[len(kinds) % len(COLOURS)])
        for axes, key in zip(panels, ("samples", "wall_time_s"), strict=True):
            axes.plot([row[key] for row in rows], [row["return"] for row in rows], color=colour, linewidth=1.0, label=label)
    for axes, what in zip(panels, ("samples", "wall time, s"), strict=True):
        axes.set(xlabel=what, ylabel="return", xscale="log")
    panels[0].legend(fontsize=8)
    picture.savefig(out / "curve.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--task", default="quadruped-walk", choices=("quadruped-walk", "anymal-velocity"))
    parser.add_argument("--contacts", default="smoothed,hard,soft")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--algorithm", default="SHAC", choices=("SHAC", "PPO"))
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--slice", type=float, default=float("inf"))
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--draw", action="store_true")
    args = parser.parse_args()
    if args.draw:
        draw(args.out)
        return
    import jax

    jax.config.update("jax_enable_x64", args.double)
    print(banner("equinox", "optax", "mujoco").replace(", one pinned", ""))
    records, begin = [], time.perf_counter()
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for contact in args.contacts.split(","):
            if time.perf_counter() - begin < args.slice:
                print(f"{args.algorithm}, {contact}, seed {seed}", flush=True)
                records.append(one_run(args, contact, seed))
    print(table(records))


if __name__ == "__main__":
    main()
