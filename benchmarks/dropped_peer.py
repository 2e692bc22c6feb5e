"""MuJoCo's fall of the robots of `dropped_robots.py`, from the same file and configuration."""

import pathlib
import re

import model_survey
import mujoco
import numpy as np

from trajopt.dynamics.model import Model
from trajopt.models.placements import tree_configuration

STEP = 5e-4  # s
DEEP = 1e-4  # m, overlaps at the start from which two bodies do not collide
PLACEHOLDER = 1e-6  # kg and all six kg m^2, no possible inertia, of a URDF's base without inertial element
_COMPILER = (
    '<mujoco><compiler strippath="false" discardvisual="true" fusestatic="false" balanceinertia="true"/></mujoco>'
)


class Unreadable(Exception):
    """MuJoCo does not read the file, or other joints in it."""


def specification(path: pathlib.Path, packages: pathlib.Path) -> mujoco.MjSpec:
    """The file as MuJoCo reads it, `package://` names resolved."""
    if path.suffix != ".urdf":
        return mujoco.MjSpec.from_file(str(path))
    text = re.sub(r"package://[^/]*/robots/", f"{packages}/", path.read_text())
    return mujoco.MjSpec.from_string(re.sub(r"(<robot[^>]*>)", rf"\1{_COMPILER}", text, count=1))


def prepare(spec: mujoco.MjSpec, model: Model) -> None:
    """A free base, ground, mimic joints and no tendon forces, as in the model."""
    moving = [body for body in spec.worldbody.bodies if body.find_all("joint")]
    if not any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in spec.joints):
        moving[0].add_freejoint(name="free base")
    if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms):
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], friction=[1, 0.005, 1e-4])
    user = {int(dof): joint.name for joint in model.topology.joints for dof in [joint.v_start]}
    for k, mimic in enumerate(model.topology.mimics):
        if spec.joint(mimic.name) is not None and not any(mimic.name in (e.name1, e.name2) for e in spec.equalities):
            line = [float(model.mimic_offset[k]), float(model.mimic_multiplier[k]), *([0.0] * 9)]
            equality = spec.add_equality(type=mujoco.mjtEq.mjEQ_JOINT, name1=mimic.name, name2=user[mimic.source])
            equality.data = line
            equality.objtype = mujoco.mjtObj.mjOBJ_JOINT
    for body in spec.bodies:
        if body.explicitinertial and body.mass == PLACEHOLDER:
            body.fullinertia = [PLACEHOLDER] * 3 + [0.0] * 3
    for tendon in spec.tendons:
        tendon.limited, tendon.frictionloss = False, 0.0


def as_stiff_as_it_goes(peer: mujoco.MjModel) -> None:
    """Constraints with time constants of two steps, the least that MuJoCo takes, 99 to 99.9 % hard; elliptic cones."""
    peer.opt.gravity = [0, 0, -9.81]
    peer.opt.timestep, peer.opt.integrator = STEP, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    peer.opt.cone, peer.opt.impratio, peer.opt.iterations = mujoco.mjtCone.mjCONE_ELLIPTIC, 100.0, 200
    peer.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CLAMPCTRL
    for name in ("geom_solref", "jnt_solref", "dof_solref", "eq_solref", "pair_solref"):
        getattr(peer, name)[:] = [2 * STEP, 1.0]
    for name in ("geom_solimp", "jnt_solimp", "dof_solimp", "eq_solimp", "pair_solimp"):
        getattr(peer, name)[:] = [0.99, 0.999, 1e-4, 0.5, 2]
    peer.geom_margin[:], peer.geom_gap[:] = 0.0, 0.0
    peer.geom_condim[:] = np.minimum(peer.geom_condim, 3)


def configuration(peer: mujoco.MjModel, model: Model, q: np.ndarray, by_name: bool) -> np.ndarray:
    """q in MuJoCo's order: of MJCF files it is the same."""
    q_tree = tree_configuration(model, q)
    if peer.nq != len(q_tree):
        raise Unreadable(f"{peer.nq} coordinates, {len(q_tree)} here")
    if not by_name:
        return q_tree
    known, found = model_survey.joints_of(model), np.zeros(peer.nq)
    for j in range(peer.njnt):
        free = peer.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE
        name, start = peer.joint(j).name, int(peer.jnt_qposadr[j])
        if not free and name not in known:
            raise Unreadable(f"joint '{name}' is not known here")
        found[start : start + (7 if free else 1)] = q_tree[:7] if free else q_tree[known[name][1]]
    return found


def part_overlaps(spec: mujoco.MjSpec, q_of) -> mujoco.MjModel:
    """The model without collisions between bodies that overlap at the start."""
    for _ in range(3):
        peer = spec.compile()
        peer.geom_margin[:] = 0.0
        data = mujoco.MjData(peer)
        data.qpos[:] = q_of(peer)
        mujoco.mj_forward(peer, data)
        deep = {tuple(sorted(peer.geom_bodyid[list(contact.geom)])) for contact in data.contact if contact.dist < -DEEP}
        if not deep:
            break
        for one, two in deep:
            spec.add_exclude(bodyname1=peer.body(one).name, bodyname2=peer.body(two).name)
    return spec.compile()


def height(peer: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Of the centre of mass of what moves, m."""
    moving = np.flatnonzero(peer.body_treeid >= 0)
    mass = peer.body_mass[moving]
    return float(mass @ data.xipos[moving, 2] / mass.sum())


def compiled(
    path: pathlib.Path, packages: pathlib.Path, model: Model, q: np.ndarray
) -> tuple[mujoco.MjModel, np.ndarray]:
    """MuJoCo's model of the file, with base and ground of `model`, and q in its order; else `Unreadable`."""
    by_name = path.suffix == ".urdf"
    try:
        spec = specification(path, packages)
        prepare(spec, model)
        peer = part_overlaps(spec, lambda peer: configuration(peer, model, q, by_name))
    except ValueError as error:
        reason = re.sub(r"/[^\s']*/", "", " ".join(str(error).split()))  # of files, their names alone
        raise Unreadable(reason[:120]) from error
    return peer, configuration(peer, model, q, by_name)


def peer_fall(
    path: pathlib.Path, packages: pathlib.Path, model: Model, q: np.ndarray, u: np.ndarray, seconds: float
) -> tuple[float, float, float]:
    """Height (m) of the centre of mass at the start and at the end, and the largest speed at the end (m/s, rad/s)."""
    peer, configured = compiled(path, packages, model, q)
    as_stiff_as_it_goes(peer)
    data = mujoco.MjData(peer)
    data.qpos[:] = configured
    if peer.nu == len(u):
        data.ctrl[:] = u
    mujoco.mj_forward(peer, data)
    start = height(peer, data)
    for _ in range(round(seconds / STEP)):
        mujoco.mj_step(peer, data)
    mujoco.mj_forward(peer, data)
    return start, height(peer, data), float(np.abs(data.qvel).max())
