"""The Jacobian tables of Nimble (II, III) and Simple (II, III): a step's Jacobians by three methods, their time and accuracy.

    python benchmarks/jacobian_tables.py [--nimble atlas,...] [--simple go1,...] [--write]

One pinned core, float64, warm medians; MuJoCo on the same files in the same run. What was measured is kept in
.cache/jacobian-tables and replaced by the next run of the same model; --write puts the tables of everything kept on the page.
"""

import argparse
import functools
import json
import pathlib
import sys

from measure import banner, markdown, microseconds, mujoco_calls, pin_to_one_core, standing

pin_to_one_core()
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from contact_states import lowered  # noqa: E402
from ridders import Estimate, ridders  # noqa: E402
from validation_experiments.report import write_part  # noqa: E402

from trajopt import load_model  # noqa: E402
from trajopt.dynamics import RigidContact, State, System  # noqa: E402
from trajopt.dynamics.gradients.differences import central_step  # noqa: E402
from trajopt.dynamics.rigid_body.configuration import difference, integrate  # noqa: E402

CACHE = ROOT / ".cache" / "jacobian-tables"
NIMBLE = ("atlas", "half-cheetah", "jump-worm", "catapult")
SIMPLE = ("half-cheetah", "humanoid", "ur5", "go1", "h1", "atlas")
CONTACTS = {"half-cheetah": 2, "jump-worm": 2, "catapult": 4, "go1": 4, "h1": 8, "humanoid": 8, "atlas": 8, "ur5": 0}
PAGE = "jacobian-tables"
LEVELS, SHRINK = 6, 1.6
STEPS = {"q": 1e-5, "v": 1e-4, "tau": 1e-1}  # largest of Ridders: the modes of the contacts do not change within them
BLOCKS = {  # of the five Jacobians: rows and columns of [A B], by halves
    "dq+/dq": ("q", 0), "dv+/dq": ("q", 1), "dq+/dv": ("v", 0), "dv+/dv": ("v", 1), "dv+/dtau": ("tau", 1),
}  # fmt: skip
# Milliseconds, in the order of BLOCKS, all together first: analytical, central differences, Ridders (Nimble, Table III).
NIMBLE_PUBLISHED = {
    "atlas": ((16.1, 737, 2229), (0.0275, 160, 581), (13.0, 161, 581), (0.0190, 96.4, 304), (1.91, 160, 487),
              (1.16, 161, 524)),
    "half-cheetah": ((0.870, 7.52, 24), (0.00755, 1.50, 3.17), (0.564, 1.746, 7.92), (0.00239, 0.797, 2.42),
                     (0.185, 1.74, 5.63), (0.111, 1.74, 5.75)),
    "jump-worm": ((0.484, 3.08, 9.727), (0.00648, 0.590, 1.58), (0.326, 0.730, 2.84), (0.00190, 0.297, 0.81),
                  (0.0879, 0.735, 2.17), (0.0623, 0.731, 2.31)),
    "catapult": ((0.576, 3.69, 12.0), (0.00888, 0.701, 1.79), (0.375, 0.887, 3.71), (0.00227, 0.329, 0.958),
                 (0.107, 0.886, 2.72), (0.0826, 0.883, 2.85)),
}  # fmt: skip
# DoF, geometries, pairs (Table II); microseconds: simulation, implicit gradients, central differences (Simple, Table III).
SIMPLE_PUBLISHED = {
    "half-cheetah": (12, 9, 27, 15.8, 14.7, 1.1e3), "humanoid": (27, 20, 161, 42.6, 47.9, 5.5e3),
    "ur5": (7, 9, 26, 12.3, 4.1, 0.4e3), "go1": (18, 39, 494, 62.6, 93.0, 6.6e3),
    "h1": (25, 25, 255, 139.3, 54.3, 17.6e3), "atlas": (36, 89, 3399, 127.3, 95.2, 26.7e3),
}  # fmt: skip


# -- what is measured --------------------------------------------------------------------------------------------------


@functools.cache
def touching(name: str) -> tuple[System, State, jax.Array]:
    """The home pose, put down to a penetration of 0.1 mm, almost at rest, under small controls.

    Joints exactly at a limit, where a step has a kink, are 0.1 mrad (0.1 mm) beyond it.
    """
    model = load_model(name).to_device()
    system = System(model, dt=1e-3, contact=RigidContact(max_contacts=CONTACTS[name]))
    rng = np.random.default_rng(0)
    q = lowered(model, model.keyframes.get("home", model.q_default), -1e-4)
    place = model.topology.scalar_q_of_dof
    for bound, outwards in ((model.lower, -1e-4), (model.upper, 1e-4)):
        q[place[(place >= 0) & (q[place] == np.asarray(bound))]] += outwards
    x = State(jnp.asarray(q), jnp.asarray(1e-3 * rng.normal(size=model.nv)))
    return system, x, jnp.asarray(0.1 * rng.normal(size=model.nu))


@jax.jit
def advance(system, x, u, warm):
    y, info = system.step(x, u, warm_start=warm)
    return y, info


@jax.jit
def jacobians(system, x, u, warm):
    linear = system.linearize(x, u, warm_start=warm)
    return linear.A, linear.B


@functools.partial(jax.jit, static_argnums=0)
def jacobian(block: str, system, x, u, warm):
    A, B = jacobians(system, x, u, warm)
    n, (by, row) = system.nv, BLOCKS[block]
    columns = {"q": A[:, :n], "v": A[:, n:], "tau": B}[by]
    return columns[row * n : (row + 1) * n]


@jax.jit
def quotients(system, x, u, warm, first, last, h, levels):
    """Central differences of x+ along the coordinates first .. last - 1 of [q, v, u], for `levels` of the steps h (LEVELS,)."""
    n, total = system.nv, 2 * system.nv + system.nu
    y = system.step(x, u, warm_start=warm)[0]

    def moved(d):
        z, _ = system.step(
            State(integrate(system.model, x.q, d[:n]), x.v + d[n : 2 * n]), u + d[2 * n :], warm_start=warm
        )
        return jnp.concatenate([difference(system.model, y.q, z.q), z.v])

    def at(i, table):
        j, k = first + i // levels, i % levels
        sides = jax.lax.map(lambda s: moved(jnp.zeros(total).at[j].set(s * h[k])), jnp.array([1.0, -1.0]))
        return table.at[j, k].set((sides[0] - sides[1]) / (2 * h[k]))

    return jax.lax.fori_loop(0, (last - first) * levels, at, jnp.zeros((total, LEVELS, 2 * n)))


def columns_of(system: System, by: str) -> tuple[int, int]:
    n = system.nv
    return {"q": (0, n), "v": (n, 2 * n), "tau": (2 * n, 2 * n + system.nu)}[by]


def central(system, x, u, warm, by: str):
    h = jnp.full(LEVELS, central_step(x.q.dtype))
    return np.asarray(quotients(system, x, u, warm, *columns_of(system, by), h, 1))[slice(*columns_of(system, by)), 0].T


def extrapolated(system, x, u, warm, by: str) -> Estimate:
    """Ridders' table of the coordinates of one group."""
    first, last = columns_of(system, by)
    steps = STEPS[by] / SHRINK ** np.arange(LEVELS)
    table = np.asarray(quotients(system, x, u, warm, first, last, jnp.asarray(steps), LEVELS))[first:last]
    # `ridders` takes a function: one whose odd part has these quotients.
    known = {s: s * table[:, k] for k, s in enumerate(steps)} | {-s: -s * table[:, k] for k, s in enumerate(steps)}
    estimate = ridders(known.__getitem__, STEPS[by], LEVELS, SHRINK, noise=4e-15)
    return Estimate(estimate.value.T, estimate.error.T)


def milliseconds(call) -> float:
    return microseconds(call, batches=5, seconds=0.05) / 1e3


def nimble(name: str) -> dict:
    """Time (ms) of the five Jacobians by the three methods, and their largest error relative to the largest entry."""
    system, x, u = touching(name)
    info = jax.block_until_ready(advance(system, x, u, jnp.zeros(warm_size(system))))[1]
    warm = info.impulse
    exact = np.hstack(jacobians(system, x, u, warm))
    out = {"dof": system.nv, "contacts": int((np.asarray(info.contacts.mode) > 0).sum()), "machine": banner("mujoco")}
    out["step"] = milliseconds(lambda: advance(system, x, u, warm)[0].v)
    times = {by: (milliseconds(lambda by=by: central(system, x, u, warm, by)),
                  milliseconds(lambda by=by: extrapolated(system, x, u, warm, by).value)) for by in STEPS}  # fmt: skip
    rows = {}
    for block, (by, row) in BLOCKS.items():
        half = slice(row * system.nv, (row + 1) * system.nv)
        judge, other = extrapolated(system, x, u, warm, by), central(system, x, u, warm, by)[half]
        truth, own = judge.value[half], exact[half, slice(*columns_of(system, by))]
        size = np.abs(truth).max()
        rows[block] = {
            "times": (milliseconds(lambda block=block: jacobian(block, system, x, u, warm)), *times[by]),
            "errors": [float(np.abs(a - truth).max() / size) for a in (own, other)],
            "estimate": float(judge.error[half].max() / size),
        }
    everything = milliseconds(lambda: jacobians(system, x, u, warm)[0])
    out["blocks"] = {"all": {"times": (everything, *(sum(t[k] for t in times.values()) for k in (0, 1)))}} | rows
    return out


def warm_size(system: System) -> int:
    return 3 * CONTACTS[system.model.name] + system.contact.limit_rows(system.model)


def simple(name: str, states: int = 12, stride: int = 8) -> dict:
    """Mean and standard deviation (us) over states of a trajectory that begins standing, and MuJoCo's on the same states."""
    system, _, u = touching(name)
    model = system.model
    try:
        q = standing(model)
    except StopIteration:
        q = np.asarray(model.keyframes.get("home", model.q_default))

    def times_at(x, warm):
        peer_step, peer_differences, _ = mujoco_calls(name, np.asarray(x.q), np.asarray(x.v), u=np.asarray(u), central=True)
        calls = (
            lambda: advance(system, x, u, warm)[0].v, lambda: jacobians(system, x, u, warm)[0],
            lambda: [central(system, x, u, warm, by) for by in STEPS], peer_step, peer_differences,
        )  # fmt: skip
        return [microseconds(call, batches=3, seconds=0.005) for call in calls]

    x, warm = State(jnp.asarray(q), jnp.zeros(system.nv)), jnp.zeros(warm_size(system))
    times, contacts, iterations = [], 0, []
    for k in range(states * stride):
        y, info = advance(system, x, u, warm)
        iterations.append(int(info.iterations))
        if k % stride == stride - 1:
            times.append(times_at(x, warm))
            contacts = max(contacts, int((np.asarray(info.contacts.mode) > 0).sum()))
        x, warm = y, info.impulse
    names = ("step", "step and Jacobian", "central differences", "MuJoCo step", "MuJoCo central differences")
    table = np.array(times)
    return {
        "dof": model.nv, "shapes": len(model.topology.shapes), "pairs": len(model.topology.pairs), "contacts": contacts,
        "machine": banner("mujoco"), "iterations": (float(np.median(iterations)), max(iterations)),
        "times": {key: (float(a.mean()), float(a.std())) for key, a in zip(names, table.T, strict=True)},
    }  # fmt: skip


# -- the page ----------------------------------------------------------------------------------------------------------


def number(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def nimble_rows(results: dict[str, dict]) -> list[str]:
    lines = []
    for name, result in results.items():
        label = f"{name}, {result['dof']} DoF, {result['contacts']} contacts"
        for (block, row), peer in zip(result["blocks"].items(), NIMBLE_PUBLISHED[name], strict=True):
            exact, differences, extrapolation = row["times"]
            errors = [f"{e:.0e}" for e in row.get("errors", ())] or ["", ""]
            lines.append(
                f"| {label} | {block} | {number(exact)} | {number(differences)} | {number(extrapolation)} | "
                f"{differences / exact:.0f}x | {extrapolation / exact:.0f}x | {errors[0]} | {errors[1]} | "
                f"{number(peer[0])} | {number(peer[1] / peer[0])}x | {number(peer[2] / peer[0])}x |"
            )
            label = ""
    return lines


def simple_rows(results: dict[str, dict]) -> tuple[list[str], list[str]]:
    scenes, lines = [], []
    for name, result in results.items():
        dof, shapes, pairs, *peer = SIMPLE_PUBLISHED[name]
        scenes.append(f"| {name} | {result['dof']} ({dof}) | {result['shapes']} ({shapes}) | {result['pairs']} ({pairs}) | "
                      f"{result['contacts']} | {result['iterations'][0]:.0f} | {result['iterations'][1]} |")  # fmt: skip
        mean = {key: value[0] for key, value in result["times"].items()}
        cells = [f"{number(a)} +- {number(b)}" for a, b in result["times"].values()]
        both, own = mean["step and Jacobian"], mean["central differences"]
        lines.append(f"| {name} | {' | '.join(cells)} | {own / both:.0f}x | {mean['MuJoCo central differences'] / both:.1f}x | "
                     f"{' | '.join(number(p) for p in peer)} |")  # fmt: skip
    return scenes, lines


NIMBLE_HEAD = (
    "scene", "Jacobian", "analytic", "central", "Ridders", "ratio", "ratio", "error, analytic", "error, central", "Nimble",
    "ratio", "ratio",
)  # fmt: skip
SCENES_HEAD = ("scene", "DoF", "shapes", "pairs", "contacts at most", "Newton iterations, median", "at most")
SIMPLE_HEAD = (
    "scene", "step", "step and Jacobian", "differences", "MuJoCo step", "its differences", "ratio", "ratio", "Simple",
    "gradients", "FD",
)  # fmt: skip


def kept(kind: str, names) -> dict[str, dict]:
    files = {name: CACHE / f"{kind}-{name}.json" for name in names}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nimble", default=",".join(NIMBLE))
    parser.add_argument("--simple", default=",".join(SIMPLE))
    parser.add_argument("--write", action="store_true", help="the tables of docs/notes/jacobian-tables.md")
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    print(banner("mujoco"))
    for kind, measure, names in (("nimble", nimble, arguments.nimble), ("simple", simple, arguments.simple)):
        for name in filter(None, names.split(",")):
            result = measure(name)
            (CACHE / f"{kind}-{name}.json").write_text(json.dumps(result))
            lines = nimble_rows({name: result}) if kind == "nimble" else simple_rows({name: result})[1]
            print("\n".join(lines), flush=True)
            jax.clear_caches()  # a process may map so much memory only, and every program maps some
    if arguments.write:
        first, second = kept("nimble", NIMBLE), kept("simple", SIMPLE)
        scenes, lines = simple_rows(second)
        machine = sorted({result["machine"] for result in (*first.values(), *second.values())})[-1]
        write_part(PAGE, "machine", f"{machine}.")
        for marker, head, rows in (
            ("nimble", NIMBLE_HEAD, nimble_rows(first)), ("scenes", SCENES_HEAD, scenes), ("simple", SIMPLE_HEAD, lines),
        ):  # fmt: skip
            write_part(PAGE, marker, "\n".join([markdown(head, []), *rows]))


if __name__ == "__main__":
    main()
