"""MJCF reader: the `mujoco` package compiles the file, this module translates the result.

So defaults, includes, mesh inertias and frames are MuJoCo's own. What the translation keeps:

- joints hinge, slide, ball, free, with position, axis, ref, range (when limited), damping, armature, stiffness and
  springref, frictionloss;
- colliding geoms (contype or conaffinity set, or named in a pair): primitives, convex hulls of meshes, height fields
  (`Model.terrain` then holds the heights, x fastest; `size` is the two half extents and the greatest height);
- primitive geoms that collide with nothing, of group 0 to 2: shapes without contact pairs, to be drawn;
- sliding friction (0 where condim is 1), priority, contact bits, excluded and explicit pairs;
- restitution, which MJCF does not have: `<custom><numeric name="trajopt_restitution" data="0.8"/></custom>` sets it for
  every geom, `trajopt_restitution/GEOM` for one; the default is 0;
- bodies and sites as frames; keyframes; gravity;
- equality constraints (below);
- actuators, see `trajopt.models.mjcf_actuators`.

The rest (tendon forces, fluid forces, ...) is left out with a warning that names it.

MuJoCo's equality constraints as constraints that hold exactly (`dynamics.contact.closures`).

- `connect` and `weld`, of bodies or sites: closures, their frames as MuJoCo compiles them;
- `joint`: a linear coupling, y - y_0 = c_0 + c_1 (x - x_0), becomes a mimic joint, which has no error at all; every
  other one, also a second one of the same joint, and `tendon` on fixed tendons: a coupling with its polynomial.

solref, solimp and torquescale, which say how soft MuJoCo's are, have no counterpart. Constraints that are not active at
the start are left out in silence, others (spatial tendons, flexes, distances) with a warning.
"""

from pathlib import Path
from xml.etree.ElementTree import Element

import mujoco
import numpy as np

from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError
from trajopt.models.builder import ModelBuilder
from trajopt.models.descriptions import (
    BodyDescription,
    ClosureDescription,
    CouplingDescription,
    FrameDescription,
    JointDescription,
    Mimic,
    PairDescription,
    ShapeDescription,
    quaternion_to_matrix,
)
from trajopt.models.meshes import convex_hull
from trajopt.models.mjcf_actuators import add_actuators
from trajopt.models.mjcf_compile import compile_mjcf
from trajopt.models.mjcf_files import check_files
from trajopt.models.mujoco_geoms import GEOMS

_EQ = mujoco.mjtEq
Frame = tuple[np.ndarray, np.ndarray]


def add_equalities(
    model: mujoco.MjModel, body_names: list[str], joint_names: list[str], builder: ModelBuilder
) -> None:
    """Translate every active equality constraint of `model` into the builder. See the module docstring."""
    joints = {joint.name: joint for body in builder.bodies.values() for joint in body.joints}
    for k in range(model.neq):
        if not model.eq_active0[k]:
            continue
        kind = _EQ(int(model.eq_type[k]))
        short = kind.name.removeprefix("mjEQ_").lower()
        name = model.equality(k).name or f"{short}{k}"
        one, two = int(model.eq_obj1id[k]), int(model.eq_obj2id[k])
        data = [float(x) for x in model.eq_data[k]]
        if kind in (_EQ.mjEQ_CONNECT, _EQ.mjEQ_WELD):
            builder.closures.append(_closure(model, body_names, k, name, short))
        elif kind == _EQ.mjEQ_JOINT:
            y, x = joints[joint_names[one]], joints[joint_names[two]] if two >= 0 else None
            if x is not None and y.mimic is None and not any(data[2:5]):
                y.mimic = Mimic(x.name, data[1], y.reference + data[0] - data[1] * x.reference)
                continue
            right = {} if x is None else {x.name: 1.0}
            reference = y.reference, 0.0 if x is None else x.reference
            builder.couplings.append(CouplingDescription(name, {y.name: 1.0}, right, reference, tuple(data[:5])))
        elif kind == _EQ.mjEQ_TENDON and all(_is_fixed(model, t) for t in (one, two) if t >= 0):
            arms = [_arms(model, t, joint_names) if t >= 0 else {} for t in (one, two)]
            lengths = [float(model.tendon_length0[t]) if t >= 0 else 0.0 for t in (one, two)]
            ends = lengths[0], lengths[1]
            builder.couplings.append(CouplingDescription(name, arms[0], arms[1], ends, tuple(data[:5])))
        else:
            label = model.equality(k).name or f"number {k}"
            builder.warn(f"equality constraint '{short}' ({label}) is not supported; it is left out")


def _closure(model: mujoco.MjModel, body_names: list[str], k: int, name: str, kind: str) -> ClosureDescription:
    ids, data = (int(model.eq_obj1id[k]), int(model.eq_obj2id[k])), model.eq_data[k]
    if int(model.eq_objtype[k]) == mujoco.mjtObj.mjOBJ_SITE:
        frames = [(quaternion_to_matrix(model.site_quat[s]), np.array(model.site_pos[s])) for s in ids]
        bodies = [int(model.site_bodyid[s]) for s in ids]
    elif kind == "connect":
        frames, bodies = [(np.eye(3), np.array(data[:3])), (np.eye(3), np.array(data[3:6]))], list(ids)
    else:
        frames = [(quaternion_to_matrix(data[6:10]), np.array(data[3:6])), (np.eye(3), np.array(data[:3]))]
        bodies = list(ids)
    owners = [body_names[b] if b else None for b in bodies]
    return ClosureDescription(name, kind, owners[0], owners[1], frames[0], frames[1])


def _is_fixed(model: mujoco.MjModel, tendon: int) -> bool:
    return all(int(model.wrap_type[w]) == mujoco.mjtWrap.mjWRAP_JOINT for w in _wraps(model, tendon))


def _arms(model: mujoco.MjModel, tendon: int, joint_names: list[str]) -> dict[str, float]:
    """Factor of every joint's coordinate in the length of a fixed tendon."""
    arms: dict[str, float] = {}
    for w in _wraps(model, tendon):
        name = joint_names[int(model.wrap_objid[w])]
        arms[name] = arms.get(name, 0.0) + float(model.wrap_prm[w])
    return arms


def _wraps(model: mujoco.MjModel, tendon: int) -> range:
    first = int(model.tendon_adr[tendon])
    return range(first, first + int(model.tendon_num[tendon]))


_KINDS = {
    mujoco.mjtJoint.mjJNT_HINGE: "revolute",
    mujoco.mjtJoint.mjJNT_SLIDE: "prismatic",
    mujoco.mjtJoint.mjJNT_BALL: "ball",
    mujoco.mjtJoint.mjJNT_FREE: "free",
}
_SHAPES = {geom: kind for kind, geom in GEOMS.items()} | {mujoco.mjtGeom.mjGEOM_SDF: ShapeType.MESH}
_DRAWN = (ShapeType.SPHERE, ShapeType.CAPSULE, ShapeType.BOX, ShapeType.CYLINDER, ShapeType.ELLIPSOID)
_DISABLE = mujoco.mjtDisableBit
_RESTITUTION = "trajopt_restitution"


def read_mjcf(root: Element, content: bytes, name: str, source: str, path: Path | None = None) -> ModelBuilder:
    """A builder filled from an MJCF document, already parsed (`root`) and as bytes (`content`).

    `path` is needed for includes and assets. Raises `ModelError` with MuJoCo's reason when it refuses the document.
    """
    check_files(root, path)
    model, messages = compile_mjcf(content, source, path)
    builder = ModelBuilder(
        root.get("model") or name,
        source,
        filter_parent=not model.opt.disableflags & _DISABLE.mjDSBL_FILTERPARENT,
        filter_world_parent=False,
    )
    for message in messages:
        builder.warn(message)
    names = _Names(model)
    flags = int(model.opt.disableflags)
    builder.gravity = np.zeros(3) if flags & _DISABLE.mjDSBL_GRAVITY else np.array(model.opt.gravity)
    restitution = _restitutions(model, builder)
    for b in range(1, model.nbody):
        builder.add_body(_body(model, names, b, flags, builder))
    _add_shapes(model, names, builder, restitution, flags)
    _add_sites(model, names, builder)
    if not flags & (_DISABLE.mjDSBL_EQUALITY | _DISABLE.mjDSBL_CONSTRAINT):
        add_equalities(model, names.body, names.joint, builder)
    add_actuators(model, names.joint, builder)
    for k in range(model.nkey):
        key = model.key_qpos[k]
        builder.keyframes[model.key(k).name or f"keyframe{k}"] = {
            names.joint[j]: key[model.jnt_qposadr[j] :][: _coordinates(model, j)].copy() for j in range(model.njnt)
        }
    _warn_unsupported(model, names, builder)
    return builder


def _coordinates(model: mujoco.MjModel, joint: int) -> int:
    """Number of coordinates of a MuJoCo joint."""
    return {0: 7, 1: 4, 2: 1, 3: 1}[int(model.jnt_type[joint])]


class _Names:
    """Unique names of bodies, joints and geoms; unnamed ones are called after their body or number."""

    def __init__(self, model: mujoco.MjModel):
        self.body = [model.body(b).name or f"body{b}" for b in range(model.nbody)]
        self.joint = []
        for j in range(model.njnt):
            body = int(model.jnt_bodyid[j])
            single = model.body_jntnum[body] == 1
            own = f"{self.body[body]}_joint" + ("" if single else str(j - int(model.body_jntadr[body])))
            self.joint.append(model.joint(j).name or own)
        self.geom = []
        for g in range(model.ngeom):
            body = int(model.geom_bodyid[g])
            own = f"{self.body[body]}_geom{g - int(model.body_geomadr[body])}"
            self.geom.append(model.geom(g).name or own)


def _body(model: mujoco.MjModel, names: _Names, b: int, flags: int, builder: ModelBuilder) -> BodyDescription:
    parent = int(model.body_parentid[b])
    r = quaternion_to_matrix(model.body_iquat[b])
    inertia = r @ np.diag(model.body_inertia[b]) @ r.T
    body = BodyDescription(
        names.body[b],
        names.body[parent] if parent else None,
        quaternion_to_matrix(model.body_quat[b]),
        np.array(model.body_pos[b]),
        float(model.body_mass[b]),
        np.array(model.body_ipos[b]),
        (inertia + inertia.T) / 2,
    )
    first = int(model.body_jntadr[b])
    for j in range(first, first + int(model.body_jntnum[b])):
        body.joints.append(_joint(model, names, j, flags, builder))
    return body


def _joint(model: mujoco.MjModel, names: _Names, j: int, flags: int, builder: ModelBuilder) -> JointDescription:
    kind = _KINDS[mujoco.mjtJoint(int(model.jnt_type[j]))]
    scalar = kind in ("revolute", "prismatic")
    dofs = slice(int(model.jnt_dofadr[j]), int(model.jnt_dofadr[j]) + {"ball": 3, "free": 6}.get(kind, 1))
    joint = JointDescription(
        names.joint[j],
        kind,
        np.array(model.jnt_axis[j]),
        np.array(model.jnt_pos[j]) if kind != "free" else np.zeros(3),
        armature=np.array(model.dof_armature[dofs]),
    )
    if not flags & _DISABLE.mjDSBL_DAMPER:
        joint.damping = np.array(model.dof_damping[dofs])
    if not flags & (_DISABLE.mjDSBL_FRICTIONLOSS | _DISABLE.mjDSBL_CONSTRAINT):
        joint.frictionloss = np.array(model.dof_frictionloss[dofs])
    limited = model.jnt_limited[j] and not flags & (_DISABLE.mjDSBL_LIMIT | _DISABLE.mjDSBL_CONSTRAINT)
    spring = model.jnt_stiffness[j] > 0 and not flags & _DISABLE.mjDSBL_SPRING
    if scalar:
        q = int(model.jnt_qposadr[j])
        joint.reference = float(model.qpos0[q])
        joint.armature, joint.damping, joint.frictionloss = (
            float(np.reshape(x, -1)[0]) for x in (joint.armature, joint.damping, joint.frictionloss)
        )
        if limited:
            joint.lower, joint.upper = map(float, model.jnt_range[j])
        if spring:
            joint.stiffness, joint.spring_reference = float(model.jnt_stiffness[j]), float(model.qpos_spring[q])
        if model.jnt_actfrclimited[j]:
            joint.effort = float(np.min(np.abs(model.jnt_actfrcrange[j])))
            low, high = map(float, model.jnt_actfrcrange[j])
            joint.force_range = (low, high)
        return joint
    if kind == "free":
        joint.initial = np.array(model.qpos0[int(model.jnt_qposadr[j]) :][:7])
    if limited:
        builder.warn(f"the range of {kind} joint '{joint.name}' is not supported; the joint is unlimited")
    if spring:
        builder.warn(f"the spring of {kind} joint '{joint.name}' is not supported; it is left out")
    return joint


def _restitutions(model: mujoco.MjModel, builder: ModelBuilder) -> dict[str, float]:
    """Restitution by geom name, "" for all others, from the custom numbers; see the module docstring."""
    restitutions = {"": 0.0}
    for k in range(model.nnumeric):
        name = model.numeric(k).name
        if name == _RESTITUTION or name.startswith(_RESTITUTION + "/"):
            value = float(model.numeric_data[model.numeric_adr[k]])
            if not 0 <= value <= 1:
                raise ModelError(f"{builder.source}: custom number '{name}' is {value}; expected 0 to 1")
            restitutions[name[len(_RESTITUTION) + 1 :]] = value
    return restitutions


def _add_shapes(model, names: _Names, builder: ModelBuilder, restitution: dict[str, float], flags: int) -> None:
    paired = {int(g) for g in (*model.pair_geom1, *model.pair_geom2)}
    hulls: dict[int, np.ndarray | None] = {}
    rolling = False
    for g in range(model.ngeom):
        bits = int(model.geom_contype[g]), int(model.geom_conaffinity[g])
        kind, collides = _SHAPES[mujoco.mjtGeom(int(model.geom_type[g]))], any(bits) or g in paired
        if not collides and (kind not in _DRAWN or model.geom_group[g] > 2):
            continue
        size, vertices, data = np.array(model.geom_size[g]), None, int(model.geom_dataid[g])
        if kind is ShapeType.MESH:
            if data not in hulls:
                start = int(model.mesh_vertadr[data])
                points = model.mesh_vert[start : start + int(model.mesh_vertnum[data])].astype(float)
                corner = int(model.mesh_faceadr[data])
                faces = points[model.mesh_face[corner : corner + int(model.mesh_facenum[data])]]
                hulls[data] = _hull(points, model.mesh(data).name, faces, builder)
            vertices, size = hulls[data], np.zeros(3)
            if vertices is None:
                continue
        elif kind is ShapeType.HEIGHTFIELD:
            vertices, size = _height_field(model, data)
        condim = int(model.geom_condim[g])
        rolling |= collides and condim > 3
        shape = ShapeDescription(
            names.geom[g],
            kind,
            size,
            quaternion_to_matrix(model.geom_quat[g]),
            np.array(model.geom_pos[g]),
            vertices,
            friction=float(model.geom_friction[g, 0]) if condim > 1 else 0.0,
            restitution=restitution.get(names.geom[g], restitution[""]),
            priority=int(model.geom_priority[g]),
            contype=bits[0],
            conaffinity=bits[1],
        )
        body = int(model.geom_bodyid[g])
        (builder.bodies[names.body[body]].shapes if body else builder.world_shapes).append(shape)
    if rolling:
        builder.warn("torsional and rolling friction (condim 4 and 6) are not supported; sliding friction is kept")
    for k in range(model.npair):
        a, b = names.geom[int(model.pair_geom1[k])], names.geom[int(model.pair_geom2[k])]
        friction = float(model.pair_friction[k, 0]) if model.pair_dim[k] > 1 else 0.0
        bounce = max(restitution.get(name, restitution[""]) for name in (a, b))
        builder.pairs.append(PairDescription(a, b, friction, bounce))
    for signature in model.exclude_signature:
        ids = int(signature) >> 16, int(signature) & 0xFFFF
        builder.excludes.add(frozenset(names.body[b] if b else None for b in ids))
    if flags & (_DISABLE.mjDSBL_CONTACT | _DISABLE.mjDSBL_CONSTRAINT):
        builder.warn("contact is disabled by the file's option flags; there are no contact pairs")
        builder.pairs.clear()
        for shape in [*builder.world_shapes, *(s for body in builder.bodies.values() for s in body.shapes)]:
            shape.contype = shape.conaffinity = 0


def _height_field(model: mujoco.MjModel, data: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = int(model.hfield_nrow[data]), int(model.hfield_ncol[data])
    half_x, half_y, top, _ = model.hfield_size[data]
    start = int(model.hfield_adr[data])
    heights = model.hfield_data[start : start + rows * columns].astype(float).reshape(rows, columns) * top
    x, y = np.meshgrid(np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows))
    return np.stack([x, y, heights], axis=-1).reshape(-1, 3), np.array([half_x, half_y, top])


def _hull(points: np.ndarray, name: str, faces: np.ndarray, builder: ModelBuilder) -> np.ndarray | None:
    """The hull of a mesh; None, with a warning, for a flat one."""
    try:
        return convex_hull(points, name, builder.warn, faces)
    except ModelError as error:
        builder.warn(f"{error}; its geoms are dropped")
        return None


def _add_sites(model: mujoco.MjModel, names: _Names, builder: ModelBuilder) -> None:
    for s in range(model.nsite):
        if not model.site(s).name:
            continue
        frame = FrameDescription(
            model.site(s).name, quaternion_to_matrix(model.site_quat[s]), np.array(model.site_pos[s])
        )
        body = int(model.site_bodyid[s])
        (builder.bodies[names.body[body]].frames if body else builder.world_frames).append(frame)


def _warn_unsupported(model: mujoco.MjModel, names: _Names, builder: ModelBuilder) -> None:
    def some(flags) -> list[int]:
        return [int(i) for i in np.flatnonzero(np.asarray(flags))]

    for t in range(model.ntendon):
        forces = (model.tendon_stiffness, model.tendon_damping, model.tendon_frictionloss, model.tendon_armature)
        if any(term[t] > 0 for term in forces) or model.tendon_limited[t]:
            builder.warn(f"the spring, damping, friction or limits of tendon '{model.tendon(t).name}' are left out")
    colliding = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    distances = {
        "margin": some(colliding & (model.geom_margin > 0)) + some(model.pair_margin > 0),
        "gap": some(colliding & (model.geom_gap > 0)) + some(model.pair_gap > 0),
    }
    for what, entries in distances.items():
        if entries:
            builder.warn(
                f"{what} of {len(entries)} geoms or pairs is not supported and left out; contacts act where shapes touch"
            )
    if model.opt.density or model.opt.viscosity:
        builder.warn("fluid forces (option density and viscosity) are not supported; they are left out")
    if model.nflex:
        builder.warn(f"flexible bodies are not supported; {model.nflex} flex elements are left out")
    for b in some(model.body_gravcomp):
        builder.warn(f"gravity compensation of body '{names.body[b]}' is not supported; it is left out")
    for b in some(model.body_mocapid >= 0):
        builder.warn(f"mocap body '{names.body[b]}' is taken as fixed to the world")
    for j in some(np.any(getattr(model, "jnt_stiffnesspoly", np.zeros((0, 1))), axis=1)):
        builder.warn(f"the nonlinear spring of joint '{names.joint[j]}' is not supported; its linear part is kept")
    for i in some(np.any(getattr(model, "dof_dampingpoly", np.zeros((0, 1))), axis=1)):
        joint = names.joint[int(model.dof_jntid[i])]
        builder.warn(f"the nonlinear damping of joint '{joint}' is not supported; its linear part is kept")
