"""Time of a step, and of a step with its Jacobian, against degrees of freedom, active contacts and batch; real-time factors.

    python benchmarks/bench_scaling.py [--parts dof,contacts,batch,real-time] [--out docs/images/scaling.png] [--json FILE]

One pinned core, float64, default settings, dt = 1 ms; below five minutes on an idle machine. Single steps are those of a compiled
loop. MuJoCo runs the same models in the same run, its Jacobian being its one-sided finite difference.

dof: a chain of links with a hinge each, and a binary tree of them, 6 to 100 DoF, without contact, in motion.
contacts: sixteen free boxes (96 DoF), 0 to 16 of them resting on the floor with four contacts each, the others in the air.
batch: `jax.vmap` over standing Go1, 1 to 16,384 samples.
real-time: seconds simulated in a second of computing, over the number of robots that stand side by side in a batch (as Figure 8.5
of JaxSim's thesis).

Exponents are slopes of log(time) over log(size) by least squares, over the larger half of the sizes.
"""

import argparse
import pathlib
import time

from measure import (
    banner,
    begin,
    markdown,
    microseconds,
    microseconds_in_loop,
    mujoco_calls,
    standing,
    step_and_linearize,
    write_json,
)

DOF = (6, 12, 18, 24, 36, 48, 60, 80, 100)
BOXES = 16
RESTING = (0, 1, 2, 4, 8, 12, 16)
BATCHES = (1, 4, 16, 64, 256, 1024, 4096, 16384)
FLEET = (1, 4, 16, 64, 256, 1024, 4096)
ROBOTS = ("half-cheetah", "go1", "h1", "atlas")
DT = 1e-3
STEP, BOTH, THEIR_STEP, THEIR_BOTH = "step", "step + Jacobian", "`mj_step`", "MuJoCo's differences"


# -- models ------------------------------------------------------------------------------------------------------------


def linkage(parents: list[int]) -> str:
    """MJCF of links with a driven hinge each, on the link that `parents` names (-1: the world); axes alternate."""
    children: dict[int, list[int]] = {}
    for link, parent in enumerate(parents):
        children.setdefault(parent, []).append(link)

    def body(link: int) -> str:
        axis = ("0 1 0", "1 0 0", "0 0 1")[link % 3]
        inside = "".join(body(child) for child in children.get(link, []))
        return (
            f'<body name="b{link}" pos="0 0.02 -0.2"><joint name="j{link}" axis="{axis}" damping="0.1" armature="0.01"/>'
            f'<geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.2" mass="1" contype="0" conaffinity="0"/>{inside}</body>'
        )

    motors = "".join(f'<motor joint="j{link}"/>' for link in range(len(parents)))
    world = "".join(body(link) for link in children[-1])
    return f"<mujoco><worldbody>{world}</worldbody><actuator>{motors}</actuator></mujoco>"


def chain(n: int) -> str:
    return linkage([link - 1 for link in range(n)])


def tree(n: int) -> str:
    return linkage([(link + 1) // 2 - 1 for link in range(n)])


def boxes(resting: int) -> str:
    """MJCF of BOXES free boxes in a row, `resting` of them 10 um inside the floor."""
    bodies = "".join(
        f'<body name="b{k}" pos="{0.5 * k} 0 {0.1 - 1e-5 if k < resting else 1.0}"><freejoint/>'
        f'<geom type="box" size="0.1 0.1 0.1" mass="1" friction="0.5" contype="1" conaffinity="0"/></body>'
        for k in range(BOXES)
    )
    floor = '<geom type="plane" size="0 0 0.1" contype="0" conaffinity="1"/>'
    return f"<mujoco><worldbody>{floor}{bodies}</worldbody></mujoco>"


# -- measurements ------------------------------------------------------------------------------------------------------


def mujoco_us(text: str, q, v) -> dict[str, float]:
    """`mj_step`, `mjd_transitionFD` and the number of contacts."""
    step, differences, d = mujoco_calls(text, q, v, DT)
    step()
    return {"contacts": int(d.ncon), THEIR_STEP: microseconds(step), THEIR_BOTH: microseconds(differences)}


def single(text: str, moving: float) -> dict:
    """All four times of the model at its default configuration, velocities drawn with this deviation."""
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import System
    from trajopt.models import load_model_from_string

    system = System(load_model_from_string(text, name="generated"), DT)
    q = system.model.q_default
    v = jnp.asarray(moving * np.random.default_rng(0).normal(size=system.nv))
    step, both = step_and_linearize(system, v, jnp.zeros(system.nu))
    return {
        "backend": system.resolved_backend,
        STEP: microseconds_in_loop(step, q),
        BOTH: microseconds_in_loop(both, q),
        **mujoco_us(text, np.asarray(q), np.asarray(v)),
    }


def over_dof() -> dict[str, list[dict]]:
    kinds = {"chain": chain, "tree": tree}
    return {kind: [{"size": n, **single(text(n), 0.5)} for n in DOF] for kind, text in kinds.items()}


def over_contacts() -> dict[str, list[dict]]:
    rows = [{"size": 4 * resting, **single(boxes(resting), 0.0)} for resting in RESTING]
    for row in rows:
        assert row["contacts"] == row["size"], f"{row['contacts']} contacts for MuJoCo, expected {row['size']}"
    return {"boxes": rows}


def batched(name: str, sizes: tuple[int, ...], jacobian: bool) -> list[dict]:
    """Microseconds of a sample in batches of a standing robot."""
    import jax
    import jax.numpy as jnp

    from trajopt.dynamics import System
    from trajopt.models import load_model

    model = load_model(name)
    system, q = System(model, DT), jnp.asarray(standing(model))
    functions = step_and_linearize(system, jnp.zeros(model.nv), jnp.zeros(model.nu))
    mapped = {label: jax.jit(jax.vmap(f)) for label, f in zip((STEP, BOTH)[: 1 + jacobian], functions)}
    rows = []
    for size in sizes:
        many = jnp.tile(q, (size, 1))
        times = {label: microseconds(lambda f=f, many=many: f(many), batches=5) / size for label, f in mapped.items()}
        rows.append({"size": size, "backend": system.resolved_backend, **times})
    return rows


def over_batch() -> dict[str, list[dict]]:
    return {"go1": batched("go1", BATCHES, True)}


def real_time() -> dict[str, list[dict]]:
    """Seconds simulated in a second; MuJoCo's are of one robot, stepped by `mj_step`."""
    from trajopt.models import load_model

    found = {}
    for name in ROBOTS:
        found[name] = [{**row, "factor": DT * 1e6 / row[STEP]} for row in batched(name, FLEET, False)]
        found[name][0]["MuJoCo's factor"] = DT * 1e6 / microseconds(mujoco_calls(name, standing(load_model(name)), 0.0)[0])
    return found


# -- tables and picture ------------------------------------------------------------------------------------------------


def exponent(rows: list[dict], key: str) -> float:
    """Slope of log(time) over log(size), over the larger half of the sizes."""
    import numpy as np

    rows = [row for row in rows if row["size"] > 0]
    rows = rows[len(rows) // 2 :]
    return float(np.polyfit(np.log([row["size"] for row in rows]), np.log([row[key] for row in rows]), 1)[0])


def print_times(label: str, curves: dict[str, list[dict]]) -> None:
    for kind, rows in curves.items():
        keys = [key for key in (STEP, BOTH, THEIR_STEP, THEIR_BOTH) if key in rows[0]]
        body = [(row["size"], *(row[key] for key in keys)) for row in rows]
        body.append(("exponent", *(f"{exponent(rows, key):.2f}" for key in keys)))
        print(markdown((f"{label} ({kind}, {rows[0]['backend']}), us", *keys), body), end="\n\n", flush=True)


def print_factors(curves: dict[str, list[dict]]) -> None:
    head = ("real-time factor", *(f"{size:,}" for size in FLEET), "MuJoCo, 1")
    body = [(name, *(row["factor"] for row in rows), rows[0]["MuJoCo's factor"]) for name, rows in curves.items()]
    print(markdown(head, body), end="\n\n", flush=True)


LINES = {STEP: (0, "-"), BOTH: (1, "-"), THEIR_STEP: (0, "--"), THEIR_BOTH: (1, "--")}


def draw_times(axis, title: str, curves: dict[str, list[dict]]) -> None:
    from trajopt.viz.plots import COLOURS

    for marker, (kind, rows) in zip("os", curves.items()):
        for key, (colour, style) in LINES.items():
            if key in rows[0]:
                label = f"{key.replace('`', '')}{f', {kind}' if len(curves) > 1 else ''}, exponent {exponent(rows, key):.1f}"
                points = [(row["size"], row[key]) for row in rows]
                axis.plot(*zip(*points), style, marker=marker, ms=3.5, lw=1.2, color=COLOURS[colour], label=label)
    axis.set(title=title, yscale="log", ylabel="µs")
    axis.legend(fontsize=6.5)


def draw(found: dict[str, dict[str, list[dict]]], path: pathlib.Path) -> None:
    from matplotlib.ticker import ScalarFormatter

    from trajopt.viz.plots import COLOURS, figure

    made, axes = figure(2, 2, width=5.6, height=4.2)
    titles = {"dof": "degrees of freedom", "contacts": "active contacts, 96 DoF", "batch": "batch of Go1, each sample"}
    for axis, (part, title) in zip(axes.flat, titles.items()):
        draw_times(axis, title, found[part])
    axes[0, 0].set(xscale="log", xticks=DOF[::2], xticklabels=DOF[::2])
    axes[0, 0].minorticks_off()
    axes[1, 0].set_xscale("log", base=2)
    last = axes[1, 1]
    for colour, (name, rows) in zip(COLOURS, found["real-time"].items()):
        last.plot(*zip(*[(row["size"], row["factor"]) for row in rows]), "-o", ms=3.5, color=colour, label=name)
        last.axhline(rows[0]["MuJoCo's factor"], ls=":", lw=1, color=colour)
    last.set(title="real-time factor over batch; dotted: MuJoCo, one robot", yscale="log")
    last.set_xscale("log", base=2)
    last.legend(fontsize=7)
    for axis in axes[1]:  # less than two decades
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_formatter(ScalarFormatter())
        axis.tick_params(which="minor", labelsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"dof": over_dof, "contacts": over_contacts, "batch": over_batch, "real-time": real_time}
    parser.add_argument("--parts", default=",".join(parts))
    parser.add_argument("--out", type=pathlib.Path, help="picture of all parts, such as docs/images/scaling.png")
    parser.add_argument("--json")
    arguments = begin(parser)
    labels = {"dof": "DoF", "contacts": "active contacts", "batch": "batch"}
    print(banner("mujoco"), end="\n\n")
    start, found = time.perf_counter(), {}
    for part in arguments.parts.split(","):
        found[part] = parts[part]()
        print_factors(found[part]) if part == "real-time" else print_times(labels[part], found[part])
    print(f"{time.perf_counter() - start:.0f} s in all")
    if arguments.out:
        draw(found, arguments.out)
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
