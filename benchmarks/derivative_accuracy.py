"""The exact derivative of a step against Ridders' extrapolation, at random states in contact of every bundled model.

    python benchmarks/derivative_accuracy.py [--models drone,cube,go1] [--states 1000] [--write]

States come from drops and short rollouts under random controls. At each one a random direction of q, of v, of the controls
and of every parameter is tried: `System.linearize` (q, v, controls) and forward mode through `System.step` (all) against
differences extrapolated to zero step. Results are kept in .cache/derivative-accuracy and resumed from there as long as the
package's dynamics stay as they are; --write puts the tables of all that is kept
on the page.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
from contact_states import draw  # noqa: E402
from ridders import ridders  # noqa: E402
from validation_experiments.report import write_part  # noqa: E402

from trajopt import load_model  # noqa: E402
from trajopt.dynamics import RigidContact, State, System  # noqa: E402
from trajopt.dynamics.collision.narrowphase import collide, contact_count  # noqa: E402
from trajopt.dynamics.contact.inputs import StepInputs  # noqa: E402
from trajopt.dynamics.contact.rows import assemble  # noqa: E402
from trajopt.dynamics.model import Model  # noqa: E402
from trajopt.dynamics.rigid_body.configuration import difference, integrate  # noqa: E402
from trajopt.dynamics.rigid_body.kinematics import kinematics  # noqa: E402
from trajopt.models import bundled_models  # noqa: E402
from trajopt.result import Status  # noqa: E402

CACHE, PAGE = ROOT / ".cache" / "derivative-accuracy", "derivative-accuracy"
DT, CHUNK, LEVELS, SHRINK = 1e-3, 20, 6, 1.6
TRUSTED = 1e-7  # relative error estimate above which a difference is no judge
RESTITUTION = 0.3  # of every other state

# Leaf: size of a random direction where the leaf itself has none, and the largest step along it.
LEAVES = {
    "mass": (1.0, 1e-3),
    "com": (0.1, 1e-4),
    "inertia": (1e-2, 1e-3),
    "pair_friction": (1.0, 1e-3),
    "pair_restitution": (1.0, 1e-3),
    "pair_impact_friction": (1.0, 1e-3),
    "shape_size": (0.1, 1e-4),
    "shape_position": (0.1, 1e-4),
    "placement_position": (0.1, 1e-4),
    "damping": (1.0, 1e-3),
    "armature": (0.01, 1e-3),
    "stiffness": (1.0, 1e-3),
    "gravity": (1.0, 1e-3),
}
BLOCKS = ("q", "v", "tau", *LEAVES)
LARGEST = {"q": 1e-5, "v": 1e-4, "tau": 1e-1} | {name: step for name, (_, step) in LEAVES.items()}


# -- one state ---------------------------------------------------------------------------------------------------------


def directions(model: Model, rng):
    """One direction for each block: dq, dv, du, generalised force, leaves; (number of blocks, ...)."""
    count = len(BLOCKS)
    zero = {"q": (model.nv,), "v": (model.nv,), "u": (model.nu,), "force": (model.nv,)}
    out = {name: np.zeros((count, *shape)) for name, shape in zero.items()}
    for k, name in enumerate(BLOCKS):
        if name == "tau":
            part = "u" if model.nu else "force"
            out[part][k] = rng.normal(size=out[part].shape[1:])
        elif name in zero:
            out[name][k] = rng.normal(size=model.nv)
        else:
            leaf = np.asarray(getattr(model, name))
            size = np.abs(leaf).max(initial=0.0) if name not in ("com", "shape_position", "placement_position") else 0.0
            along = rng.normal(size=leaf.shape) * (size or LEAVES[name][0])
            if name == "inertia":  # of every body by itself: those of small links must stay positive definite
                along = np.abs(leaf).max((-2, -1), keepdims=True) / (size or 1.0) * along
                along = 0.5 * (along + np.swapaxes(along, -1, -2))
            out[name] = np.zeros((count, *leaf.shape))
            out[name][k] = along
    return out


SIZES = np.concatenate([[0.0], *([h, -h] for h in 1.0 / SHRINK ** np.arange(LEVELS))])


def moved(system: System, q, v, u, along, s):
    """(next state, status, whether the impulse is not unique, whether anything touches, modes) at s along a direction."""
    model, law = system.model, system.contact
    changed = model.replace(**{name: getattr(model, name) + s * along[name] for name in LEAVES})
    x = State(integrate(model, q, s * along["q"]), v + s * along["v"])
    y, info = dataclasses.replace(system, model=changed).step(x, u + s * along["u"], force=s * along["force"])
    kin = kinematics(changed, x.q)
    inputs = StepInputs(law, changed, x.q, x.v, jnp.zeros_like(x.v), system.dt)
    rows = assemble(inputs, kin, collide(changed, kin))
    nc = info.contacts.mode.shape[0]
    closed = jnp.concatenate([info.contacts.mode != 0, info.impulse[3 * nc : rows.distance.shape[0] + 2 * nc] != 0])
    # Which rows act, which candidate each contact is, whether its gap is open, whether it bounces, and how it slides.
    kind = 1 + 2 * (rows.distance > 0).astype(int) + rows.impact.astype(int)
    signature = jnp.concatenate([
        jnp.where(closed, kind, 0), jnp.where(closed[:nc], rows.selected, -1),
        jnp.where(closed[nc:], rows.limit_dof, -1), info.contacts.mode,
    ])  # fmt: skip
    return y, info.status._value, info.degenerate, jnp.any(closed), signature


@jax.jit
def evaluate(system: System, q, v, u, along, h):
    """Tangent coordinates of the next state, status and modes at all distances along all directions; derivatives by both
    routes."""
    model = system.model

    def at(along, h):
        y, *rest = jax.lax.map(lambda s: moved(system, q, v, u, along, s * h), jnp.asarray(SIZES))
        dq = jax.vmap(lambda q: difference(model, y.q[0], q))(y.q)
        return jnp.concatenate([dq, y.v], 1), *rest

    def slope(along):
        def tangent(s):
            y = moved(system, q, v, u, along, s)[0]
            return jnp.concatenate([difference(model, jax.lax.stop_gradient(y.q), y.q), y.v])

        return jax.jvp(tangent, (jnp.zeros(()),), (jnp.ones(()),))[1]

    table = jax.lax.map(lambda a: at(*a), (along, h))
    linear = system.linearize(State(q, v), u)
    closed = jnp.concatenate([along["q"], along["v"]], 1) @ linear.A.T + along["u"] @ linear.B.T
    return table, jax.lax.map(slope, along), closed


def judge(system: System, q, v, u, rng) -> dict:
    """Status of the state, and for every block a number: the relative error, or why there is none."""
    model = system.model
    along = directions(model, rng)
    h = np.array([LARGEST[name] for name in BLOCKS])
    q, v, u = (jnp.asarray(a) for a in (q, v, u))
    (z, status, degenerate, touches, modes), rule, closed = jax.tree.map(
        np.asarray, evaluate(system, q, v, u, jax.tree.map(jnp.asarray, along), jnp.asarray(h))
    )
    out = {
        "solved": bool(status[0, 0] == np.asarray(Status.solved._value)),
        "degenerate": bool(degenerate[0, 0]),
        "touches": bool(touches[0, 0]),
    }
    for k, name in enumerate(BLOCKS):
        if (modes[k] != modes[k, :1]).any():
            out[name] = "mode"
            continue
        steps = h[k] / SHRINK ** np.arange(LEVELS)
        value = {s: z[k, 1 + 2 * i] for i, s in enumerate(steps)} | {-s: z[k, 2 + 2 * i] for i, s in enumerate(steps)}
        estimate = ridders(value.__getitem__, h[k], LEVELS, SHRINK)
        size, noise = max(float(np.abs(estimate.value).max()), 1e-13), float(estimate.error.max())
        routes = [rule[k]]
        if name in ("q", "v") or (name == "tau" and model.nu):
            routes.append(closed[k])
        error = max(float(np.abs(route - estimate.value).max()) for route in routes) / size
        if np.isnan(error) or not all(np.isfinite(route).all() for route in routes):
            out[name] = "not finite"
        elif max(1.0, error) * size <= max(10 * noise, 1e-12):
            out[name] = "no effect"
        elif noise > TRUSTED * size:
            # No judge to 1e-6, but still a witness: it may not contradict the derivative by more than its own error.
            out[name] = "differences" if error * size <= 10 * noise else f"contradicts: {error:.1e}"
        else:
            out[name] = error
    return out


# -- all states of a scene ---------------------------------------------------------------------------------------------


def digest(name: str) -> str:
    """Of everything that the results of a scene depend on."""
    files = sorted((ROOT / "trajopt" / "dynamics").rglob("*.py"))
    files += [ROOT / "trajopt" / "models" / "bundled" / f"{name}.xml"]
    files += [ROOT / "benchmarks" / file for file in ("derivative_accuracy.py", "contact_states.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def scene(name: str, count: int, seed: int, keep: bool) -> dict:
    """Results of the scene, those kept from an earlier run first."""
    CACHE.mkdir(parents=True, exist_ok=True)
    file, stamp = CACHE / f"{name}.json", digest(name)
    kept = json.loads(file.read_text()) if file.exists() else {}
    if kept.get("seed") != seed or (kept.get("digest") != stamp and not keep):
        kept = {"seed": seed, "digest": stamp, "drawn": 0, "states": []}
    if len(kept["states"]) >= count:
        return kept
    model = load_model(name).to_device()
    candidates = contact_count(model)
    system = System(model, dt=DT, contact=RigidContact(max_contacts=min(candidates, 8)))
    kept |= {"dof": model.nv, "contacts": min(candidates, 8)}
    bouncing = dataclasses.replace(
        system, model=model.replace(pair_restitution=jnp.full_like(model.pair_restitution, RESTITUTION))
    )
    for k, (q, v, u) in enumerate(draw(system, seed)):
        if k < kept["drawn"]:
            continue
        found = judge((system, bouncing)[k % 2], q, v, u, np.random.default_rng([seed, k]))
        kept["drawn"] += 1
        kept["states"] += [found] if found["touches"] else []
        if (k + 1) % CHUNK == 0 or len(kept["states"]) == count:
            file.write_text(json.dumps(kept))
        if len(kept["states"]) == count:
            break
    return kept


GROUPS = {"q": ("q",), "v": ("v",), "tau": ("tau",), "parameters": tuple(LEAVES)}


def summary(states: list[dict], blocks: tuple[str, ...]) -> dict:
    """Of the solved states: numbers of judgements and of those set aside, by reason, and quantiles of the errors."""
    found = [state[block] for state in states if state["solved"] for block in blocks]
    errors = np.array([value for value in found if not isinstance(value, str)])
    reasons = {reason: sum(isinstance(v, str) and v.startswith(reason) for v in found)
               for reason in ("mode", "differences", "contradicts", "not finite", "no effect")}  # fmt: skip
    high, worst = (float(np.quantile(errors, p)) if errors.size else float("nan") for p in (0.999, 1.0))
    return {"judged": errors.size, "high": high, "worst": worst, "above": int((errors > 1e-6).sum()), **reasons}


HEADER = """| scene | by | judged | near mode changes | no judge | contradictions | 99.9 % | worst | above 1e-6 |
|---|---|---|---|---|---|---|---|---|"""
LEAF_HEADER = "| parameter | judged | no effect | worst | in |\n|---|---|---|---|---|"


def rows(name: str, result: dict) -> list[str]:
    states = result["states"]
    unsolved = sum(not state["solved"] for state in states)
    label = f"{name} ({result['dof']} DoF, {len(states)} states, {unsolved} not solved)"
    lines = []
    for group, blocks in GROUPS.items():
        s = summary(states, blocks)
        bad = s["contradicts"] + s["not finite"]
        sizes = " | ".join(f"{s[k]:.1e}" if s["judged"] else "-" for k in ("high", "worst"))
        counts = f"{s['judged']} | {s['mode']} | {s['differences']} | {bad}"
        lines.append(f"| {label} | {group} | {counts} | {sizes} | {s['above']} |")
        label = ""
    return lines


def leaf_rows(results: dict[str, dict]) -> list[str]:
    lines = []
    for leaf in LEAVES:
        per_scene = {name: summary(result["states"], (leaf,)) for name, result in results.items()}
        judged = {name: s for name, s in per_scene.items() if s["judged"]}
        if not judged:
            continue
        name = max(judged, key=lambda k: judged[k]["worst"])
        total, none = (sum(s[key] for s in per_scene.values()) for key in ("judged", "no effect"))
        lines.append(f"| `{leaf}` | {total} | {none} | {judged[name]['worst']:.1e} | {name} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="comma-separated; default: all bundled models; none: the page alone")
    parser.add_argument("--states", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="resume although the package has changed since")
    parser.add_argument("--write", action="store_true", help="the tables of the note, of everything kept")
    arguments = parser.parse_args()
    names = bundled_models() if arguments.models is None else [n for n in arguments.models.split(",") if n != "none"]
    print(HEADER)
    for name in names:
        start = time.perf_counter()
        result = scene(name, arguments.states, arguments.seed, arguments.keep)
        print("\n".join(rows(name, result)), flush=True)
        print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    if arguments.write:
        results = {
            name: json.loads(file.read_text()) for name in bundled_models() if (file := CACHE / f"{name}.json").exists()
        }
        lines = [line for name, result in results.items() for line in rows(name, result)]
        write_part(PAGE, "states", "\n".join([HEADER, *lines]))
        write_part(PAGE, "parameters", "\n".join([LEAF_HEADER, *leaf_rows(results)]))


if __name__ == "__main__":
    main()
