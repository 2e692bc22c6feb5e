"""What a user wants to know about a model: as a dictionary and as text."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from trajopt.dynamics.model import WORLD, JointSpec, Model, ShapeType
from trajopt.models.overlaps import overlapping_pairs

_DIMENSIONS = {"SPHERE": 1, "CAPSULE": 2, "CYLINDER": 2, "BOX": 3, "ELLIPSOID": 3, "HEIGHTFIELD": 3}
_BASES = {
    "floating": "floating (floating_base=False or --no-floating-base fixes it)",
    "fixed": "fixed to the world (floating_base=True or --floating-base frees it)",
    "none": "no joints (floating_base=True or --floating-base frees what has mass)",
}


def model_facts(
    model: Model, warnings: Sequence[str] = (), *, overlaps: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Everything `describe` prints, as a dictionary of plain Python values (infinite limits are None).

    Keys: name, nq, nv, nu, total_mass (kg), gravity, joints, mimics, bodies, shapes, pairs, overlaps (pairs of links left out,
    from `LoadReport`), initial (pairs of shapes that overlap at the default configuration, joints outside their limits
    there), equalities, actuators, frames (with the body; `end`: nothing else is carried by it, as by a foot), base ("floating",
    "fixed" or "none"), ground (names of planes and height fields), keyframes, warnings. In m, kg, rad, N and N m.
    """
    top = model.topology
    names = {WORLD: "world"} | dict(enumerate(top.node_names))
    return {
        "name": top.name,
        "nq": top.nq,
        "nv": top.nv,
        "nu": top.nu,
        "total_mass": float(model.mass.sum()),
        "gravity": np.asarray(model.gravity).tolist(),
        "joints": _joints(model),
        "mimics": _mimics(model),
        "bodies": _bodies(model, names),
        "shapes": _shapes(model, names),
        "pairs": _pairs(model, names),
        "overlaps": [list(pair) for pair in overlaps],
        "initial": _initial(model),
        "equalities": _equalities(model, names),
        "actuators": _actuators(model),
        "frames": _frames(model, names),
        "base": _base(model),
        "ground": [s.name for s in top.shapes if s.node == WORLD and s.kind in (ShapeType.PLANE, ShapeType.HEIGHTFIELD)],
        "keyframes": {name: np.asarray(q).tolist() for name, q in model.keyframes.items()},
        "warnings": list(warnings),
    }


def _joints(model: Model) -> list[dict[str, Any]]:
    top, actuation = model.topology, np.asarray(model.actuation)
    lower, upper = np.asarray(model.lower), np.asarray(model.upper)
    joints = []
    for joint in top.joints:
        dofs = range(joint.v_start, joint.v_start + joint.nv)
        bounded = joint.nv == 1 and (np.isfinite(lower[joint.v_start]) or np.isfinite(upper[joint.v_start]))
        joints.append(
            {
                "name": joint.name,
                "kind": joint.kind,
                "body": top.node_names[joint.nodes[-1]],
                "q": [joint.q_start, joint.q_start + joint.nq],
                "v": [joint.v_start, joint.v_start + joint.nv],
                "limits": [_finite(lower[joint.v_start]), _finite(upper[joint.v_start])] if bounded else None,
                "effort": _effort(model, actuation, joint.v_start) if joint.nv == 1 else None,
                "actuated": bool(np.any(actuation[list(dofs)] != 0)),
                **{
                    term: np.asarray(getattr(model, term))[list(dofs)].tolist()
                    for term in ("armature", "damping", "frictionloss", "stiffness")
                },
            }
        )
    return joints


def _mimics(model: Model) -> list[dict[str, Any]]:
    users = {joint.v_start: joint.name for joint in model.topology.joints}
    return [
        {"name": m.name, "follows": users[m.source], "multiplier": float(a), "offset": float(b)}
        for m, a, b in zip(model.topology.mimics, model.mimic_multiplier, model.mimic_offset, strict=True)
    ]


def _bodies(model: Model, names: dict[int, str]) -> list[dict[str, Any]]:
    top = model.topology
    known = {frame.name for frame in top.frames}
    hidden = [name not in known for name in top.node_names]  # the massless inner links of joints with several nodes
    return [
        {
            "name": names[i],
            "parent": names[_visible_parent(top.parents, hidden, i)],
            "mass": float(model.mass[i]),
            "com": np.asarray(model.com[i]).tolist(),
            "principal_moments": np.linalg.eigvalsh(np.asarray(model.inertia[i], float)).tolist(),
        }
        for i in range(top.n_nodes)
        if not hidden[i]
    ]


def _shapes(model: Model, names: dict[int, str]) -> list[dict[str, Any]]:
    paired = {k for pair in model.topology.pairs for k in pair}
    return [
        {
            "name": shape.name,
            "kind": shape.kind.name.lower(),
            "body": names[shape.node],
            "size": np.asarray(model.shape_size[k])[: _DIMENSIONS.get(shape.kind.name, 0)].tolist(),
            "vertices": len(model.meshes[shape.mesh]) if shape.mesh >= 0 else 0,
            "collides": k in paired,
        }
        for k, shape in enumerate(model.topology.shapes)
    ]


def _pairs(model: Model, names: dict[int, str]) -> list[dict[str, Any]]:
    shapes = model.topology.shapes
    return [
        {
            "shapes": [shapes[a].name, shapes[b].name],
            "bodies": [names[shapes[a].node], names[shapes[b].node]],
            "friction": float(model.pair_friction[k]),
            "restitution": float(model.pair_restitution[k]),
        }
        for k, (a, b) in enumerate(model.topology.pairs)
    ]


def _frames(model: Model, names: dict[int, str]) -> list[dict[str, Any]]:
    top = model.topology
    inner = set(top.parents)
    return [
        {"name": frame.name, "body": names[frame.node], "end": frame.node != WORLD and frame.node not in inner}
        for frame in top.frames
    ]


def _base(model: Model) -> str:
    """Whether a tree of the model floats."""
    if any(joint.kind == "free" and model.topology.parents[joint.nodes[0]] == WORLD for joint in model.topology.joints):
        return "floating"
    return "fixed" if model.topology.joints else "none"


def _initial(model: Model) -> dict[str, Any]:
    """What is doubtful about the default configuration."""
    top, q = model.topology, np.asarray(model.q_default)
    outside = []
    for dof in top.limited:
        value = float(q[top.scalar_q_of_dof[dof]])
        if not model.lower[dof] <= value <= model.upper[dof]:
            outside.append({"joint": _dof_name(top.joints, dof), "q": value})
    names = [shape.name for shape in top.shapes]
    return {"overlaps": [[names[i], names[j]] for i, j in overlapping_pairs(model)], "outside_limits": outside}


def _equalities(model: Model, names: dict[int, str]) -> list[dict[str, Any]]:
    top = model.topology
    closures = [
        {"name": closure.name, "kind": closure.kind, "bodies": [names[closure.node1], names[closure.node2]]}
        for closure in top.closures
    ]
    for i, name in enumerate(top.couplings):
        dofs = np.flatnonzero(np.any(np.asarray(model.coupling_arms)[i], axis=0))
        closures.append({"name": name, "kind": "coupling", "joints": [_dof_name(top.joints, int(dof)) for dof in dofs]})
    return closures


def _actuators(model: Model) -> list[dict[str, Any]]:
    top, actuation = model.topology, np.asarray(model.actuation)
    return [
        {
            "name": name,
            "limits": [_finite(model.control_lower[k]), _finite(model.control_upper[k])],
            "drives": {_dof_name(top.joints, int(i)): float(actuation[i, k]) for i in np.flatnonzero(actuation[:, k])},
            **_force_law(model, k),
        }
        for k, name in enumerate(top.actuators)
    ]


def _force_law(model: Model, k: int) -> dict[str, Any]:
    """Gain, bias and force range of actuator k where its model has such; nothing for motors without a force range."""
    if not len(model.actuator_gain):
        return {}
    gain, bias = (np.asarray(leaf)[k].tolist() for leaf in (model.actuator_gain, model.actuator_bias))
    return {"gain": gain, "bias": bias, "force_limits": [_finite(x) for x in np.asarray(model.actuator_range)[k]]}


def describe(
    model: Model,
    warnings: Sequence[str] = (),
    *,
    most_pairs: int = 40,
    overlaps: Sequence[tuple[str, str]] = (),
) -> str:
    """A page of text about a model: size, joints, bodies, geometry, contact pairs, actuators, keyframes, warnings.

    `warnings`, `overlaps`: those of `load_model_with_report`. Contact pairs are listed one by one up
    to `most_pairs`, else by bodies.
    """
    facts = model_facts(model, warnings, overlaps=overlaps)
    lines = [
        f"{facts['name']}: {facts['nv']} DoF (nq {facts['nq']}, nv {facts['nv']}, nu {facts['nu']}), "
        f"{facts['total_mass']:.6g} kg, gravity {_vector(facts['gravity'])}",
        f"Base: {_BASES[facts['base']]}; ground: {', '.join(facts['ground']) or 'none (ground=True or --ground adds z = 0)'}",
        "",
    ]
    lines += _joint_tables(facts) + _body_tables(facts) + _pair_table(facts["pairs"], most_pairs)
    lines += _overlap_lines(facts)
    lines += _table(
        "Actuators",
        ("name", "drives", "control limits", *(("force", "force limits") if _laws(facts) else ())),
        [
            (a["name"], ", ".join(f"{gear:.4g} {joint}" for joint, gear in a["drives"].items()), _interval(a["limits"]))
            + ((_law_text(a["gain"], a["bias"]), _interval(a["force_limits"])) if _laws(facts) else ())
            for a in facts["actuators"]
        ],
    )
    if facts["equalities"]:
        ties = [(e["name"], e["kind"], ", ".join(e.get("bodies") or e["joints"])) for e in facts["equalities"]]
        lines += _table("Equality constraints", ("name", "kind", "ties"), ties)
    lines += _frame_table(facts["frames"])
    lines += [f"Keyframes: {', '.join(facts['keyframes']) or 'none'}"]
    lines += [f"Warnings: {len(facts['warnings']) or 'none'}"]
    lines += [f"  - {warning}" for warning in facts["warnings"]]
    return "\n".join(lines)


def _laws(facts: dict[str, Any]) -> bool:
    return any("gain" in actuator for actuator in facts["actuators"])


def _law_text(gain: Sequence[float], bias: Sequence[float]) -> str:
    """The force of an actuator as a formula in its control u, length l and velocity l'."""

    def affine(numbers: Sequence[float], control: str) -> list[str]:
        names = (control, f"l{control and ' ' + control}", f"l'{control and ' ' + control}")
        return [f"{x:.4g} {name}".strip() for x, name in zip(numbers, names, strict=True) if x]

    return " + ".join(affine(gain, "u") + affine(bias, "")).replace("+ -", "- ") or "0"


def _joint_tables(facts: dict[str, Any]) -> list[str]:
    joints = [
        (
            j["name"],
            j["kind"],
            j["body"],
            _span(j["q"]),
            _span(j["v"]),
            _interval(j["limits"]),
            _effort_text(j),
            _common(j["armature"]),
            _common(j["damping"]),
        )
        for j in facts["joints"]
    ]
    mimics = [(m["name"], m["follows"], f"{m['multiplier']:.6g}", f"{m['offset']:.6g}") for m in facts["mimics"]]
    head = ("name", "type", "body", "q", "v", "limits [rad, m]", "effort [N m, N]", "armature", "damping")
    followers = _table("Mimic joints", ("name", "follows", "multiplier", "offset"), mimics) if mimics else []
    return _table("Joints", head, joints) + followers


def _body_tables(facts: dict[str, Any]) -> list[str]:
    bodies = [
        (b["name"], b["parent"], f"{b['mass']:.6g}", _vector(b["com"]), _vector(b["principal_moments"]))
        for b in facts["bodies"]
    ]
    shapes = [
        (
            s["name"],
            s["kind"],
            s["body"],
            _vector(s["size"]) if s["size"] else (f"{s['vertices']} vertices" if s["vertices"] else "-"),
            "yes" if s["collides"] else "none",
        )
        for s in facts["shapes"]
    ]
    return _table(
        "Bodies", ("name", "parent", "mass [kg]", "centre of mass [m]", "principal moments [kg m^2]"), bodies
    ) + _table("Geometry", ("name", "shape", "body", "size [m]", "contact pairs"), shapes)


def _pair_table(pairs: list[dict[str, Any]], most: int) -> list[str]:
    """One row a pair; where there are more than `most`, one row for all pairs of a body with the same coefficients."""
    title = f"Contact pairs: {len(pairs)}"
    if len(pairs) <= most:
        rows = [(*p["shapes"], f"{p['friction']:.4g}", f"{p['restitution']:.4g}") for p in pairs]
        return _table(title, ("shape 1", "shape 2", "friction", "restitution"), rows)
    others: dict[tuple[str, str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for p in pairs:
        others[p["bodies"][0], f"{p['friction']:.4g}", f"{p['restitution']:.4g}"].update([p["bodies"][1]])
    rows = [
        (body, ", ".join(f"{other} ({count})" for other, count in partners.items()), mu, e)
        for (body, mu, e), partners in others.items()
    ]
    return _table(f"{title}, by bodies", ("body 1", "with (number of pairs)", "friction", "restitution"), rows)


def _frame_table(frames: list[dict[str, Any]]) -> list[str]:
    """The names that costs and constraints may use, by body."""
    by_body: dict[str, list[str]] = collections.defaultdict(list)
    for frame in frames:
        by_body[frame["body"]].append(frame["name"])
    ends = {frame["body"] for frame in frames if frame["end"]}
    rows = [(body, "end of the tree" if body in ends else "", ", ".join(own)) for body, own in by_body.items()]
    return _table(f"Frames (names for costs, constraints and estimates): {len(frames)}", ("body", "", "frames"), rows)


def _overlap_lines(facts: dict[str, Any]) -> list[str]:
    initial, lines = facts["initial"], []
    where = "that overlap at the default configuration"
    for title, overlaps in ((f"Links {where}, left out", facts["overlaps"]), (f"Contact pairs {where}", initial["overlaps"])):
        if overlaps:
            lines += [f"{title}: {len(overlaps)}: {', '.join(f'{a} - {b}' for a, b in overlaps)}"]
    if initial["outside_limits"]:
        joints = ", ".join(f"{entry['joint']} at {entry['q']:.4g}" for entry in initial["outside_limits"])
        lines += [f"Joints outside their limits at the default configuration: {joints}"]
    return [*lines, ""] if lines else []


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _effort(model: Model, actuation: np.ndarray, dof: int) -> list[float | None] | None:
    """Smallest and largest generalised force that the actuators can exert on a DoF; None if none drives it."""
    gears = actuation[dof]
    driven = np.flatnonzero(gears)
    if not len(driven):
        return None
    limits = np.stack([model.control_lower, model.control_upper])
    if len(model.actuator_gain):
        motors = np.all(np.asarray(model.actuator_gain) == (1, 0, 0), 1) & ~np.any(model.actuator_bias, axis=1)
        limits = np.where(motors, limits, np.asarray(model.actuator_range).T)
    ends = gears[driven] * limits[:, driven]
    return [_finite(ends.min(axis=0).sum()), _finite(ends.max(axis=0).sum())]


def _visible_parent(parents: Sequence[int], hidden: Sequence[bool], node: int) -> int:
    """The next body above, past the inner links of joints."""
    node = parents[node]
    while node != WORLD and hidden[node]:
        node = parents[node]
    return node


def _dof_name(joints: Sequence[JointSpec], dof: int) -> str:
    for joint in joints:
        if joint.v_start <= dof < joint.v_start + joint.nv:
            return joint.name if joint.nv == 1 else f"{joint.name}[{dof - joint.v_start}]"
    return f"DoF {dof}"


def _vector(values: Sequence[float]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"


def _span(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[1] - ends[0] == 1 else f"{ends[0]}:{ends[1]}"


def _interval(limits: Sequence[float | None] | None) -> str:
    if limits is None or (limits[0] is None and limits[1] is None):
        return "-"
    low = "-inf" if limits[0] is None else f"{limits[0]:.4g}"
    return f"{low} .. {'inf' if limits[1] is None else f'{limits[1]:.4g}'}"


def _effort_text(joint: dict) -> str:
    if not joint["actuated"]:
        return "not actuated"
    return "unlimited" if _interval(joint["effort"]) == "-" else _interval(joint["effort"])


def _common(values: Sequence[float]) -> str:
    return f"{values[0]:.4g}" if len(set(values)) == 1 else _vector(values)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A title and aligned columns; only the title, with "none", if there are no rows."""
    if not rows:
        return [title if title.endswith(" 0") else f"{title}: none", ""]
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, *rows)]
    return [title, *(("  " + "  ".join(row)).rstrip() for row in cells), ""]
