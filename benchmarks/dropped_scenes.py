"""Published robots: their files, how they are loaded, where they start, and the same in MuJoCo."""

import dataclasses
import importlib.metadata
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import model_survey
import mujoco
import numpy as np
from contact_states import lifts

from trajopt import load_model
from trajopt.dynamics.model import Model, ShapeType
from trajopt.models import overlapping_pairs
from trajopt.models.placements import node_placements, shape_placements, tree_configuration
from trajopt.models.registry import load_model_with_report

GAP = 0.03  # m, between the lowest shape and the ground
PACKAGES = "example-robot-data/cmeel.prefix/share/example-robot-data/robots"
# Half extents 0.1 to 0.2 m, upright on their stable side: at rest the heights of the centres are known.
SHAPES = {
    "box": ("<box><size>0.3 0.4 0.2</size></box>", 0.1),
    "cylinder": ("<cylinder><radius>0.15</radius><length>0.2</length></cylinder>", 0.1),
    "sphere": ("<sphere><radius>0.15</radius></sphere>", 0.15),
    "capsule": ("<capsule><radius>0.1</radius><length>0.3</length></capsule>", 0.1),
    "ellipsoid": ("<ellipsoid><radii>0.2 0.15 0.1</radii></ellipsoid>", 0.1),
    "cone": ("<cone><radius>0.15</radius><length>0.2</length></cone>", 0.05),
}


@dataclasses.dataclass(frozen=True)
class Robot:
    """A file of a wheel, path below the cache; none: `shapes_scene`."""

    name: str
    kind: str
    path: str


ROBOTS = (
    Robot("Go2", "quadruped", f"{PACKAGES}/go2_description/urdf/go2.urdf"),
    Robot("Solo12", "quadruped", f"{PACKAGES}/solo_description/robots/solo12.urdf"),
    Robot("ANYmal B", "quadruped", f"{PACKAGES}/anymal_b_simple_description/robots/anymal.urdf"),
    Robot("Spot", "quadruped", "robosuite/robosuite/models/assets/robots/spot/robot.xml"),
    Robot("Ant", "quadruped", "gymnasium/gymnasium/envs/mujoco/assets/ant.xml"),
    Robot("Talos", "humanoid", f"{PACKAGES}/talos_data/robots/talos_reduced.urdf"),
    Robot("G1", "humanoid", f"{PACKAGES}/g1_description/urdf/g1_29dof_rev_1_0.urdf"),
    Robot("iCub", "humanoid", f"{PACKAGES}/icub_description/robots/icub_reduced.urdf"),
    Robot("CMU humanoid", "humanoid", "dm-control/dm_control/locomotion/walkers/assets/humanoid_CMU_V2020.xml"),
    Robot("Allegro", "hand", f"{PACKAGES}/allegro_hand_description/urdf/allegro_right_hand.urdf"),
    Robot("Shadow", "hand, servos", "gymnasium-robotics/gymnasium_robotics/envs/assets/hand/reach.xml"),
    Robot("Panda", "arm, gripper", f"{PACKAGES}/panda_description/urdf/panda.urdf"),
    Robot("UR5", "arm, gripper", f"{PACKAGES}/ur_description/urdf/ur5_gripper.urdf"),
    Robot("Cassie", "biped, closed loops", f"{PACKAGES}/cassie_description/robots/cassie_v2.sdf"),
    Robot("shapes", "SDF scene", ""),
)  # fmt: skip


def shapes_scene() -> str:
    """A world with a ground plane and the six shapes in a row, 0.13 m above it; the capsule lies."""
    plane = "<geometry><plane><normal>0 0 1</normal><size>100 100</size></plane></geometry>"
    models = [
        f"<model name='ground'><static>true</static><link name='l'><collision name='c'>{plane}</collision></link></model>"
    ]
    for k, (name, (geometry, rest)) in enumerate(SHAPES.items()):
        tilt = "1.5707963267948966 0 0" if name == "capsule" else "0 0 0"
        # A cone is placed by the middle of its height, half a height above its base.
        middle = 0.1 if name == "cone" else rest
        body = f"<inertial auto='true'/><collision name='c'><geometry>{geometry}</geometry></collision>"
        models.append(
            f"<model name='{name}'><pose>{k} 0 {middle + 0.1} {tilt}</pose><link name='{name}'>{body}</link></model>"
        )
    return f"<sdf version='1.12'><world name='shapes'>{''.join(models)}</world></sdf>"


def load(
    robot: Robot, cache: pathlib.Path, packages: pathlib.Path | None = None
) -> tuple[Model, np.ndarray, list[str]]:
    """The model, its start, and what was wrong with the default configuration. packages: a folder of packages other than that of
    the cache."""
    path = cache / robot.path
    options: dict[str, Any] = {"package_dirs": (packages or cache / PACKAGES,)}
    if not robot.path:
        path = cache / "shapes.sdf"
        cache.mkdir(parents=True, exist_ok=True)
        path.write_text(shapes_scene())
    model, report = load_model_with_report(path, **options)
    options["floating_base"] = None if any(joint.kind == "free" for joint in model.topology.joints) else True
    options["ground"] = not any(shape.kind is ShapeType.PLANE for shape in model.topology.shapes)
    model, report = load_model_with_report(path, **options)
    notes = [f"{len(report.overlaps)} overlapping pairs of links left out by the reader"] if report.overlaps else []
    q, moved = within_limits(model)
    if model.topology.constrained:
        model, q = without_violated_limits(model), np.array(model.q_default, float)
        moved = [f"{text}; the pose closes the loops, so these limits are left out" for text in moved]
    if not np.any(model.gravity):
        model = model.replace(gravity=np.array([0.0, 0.0, -9.81]))
        moved.append("the file has no gravity; it is given 9.81 m/s^2")
    q = put_down(model, q)
    if not robot.path:
        model = without_pairs(model, [pair for pair in model.topology.pairs if not planes(model) & set(pair)])
        moved.append("the shapes, 1 m apart, collide with the ground alone")
    pairs = overlapping_pairs(model, q)
    if pairs:
        shapes = model.topology.shapes
        left = ", ".join(f"{shapes[i].name} - {shapes[j].name}" for i, j in pairs)
        notes.append(f"overlapping shapes left out besides: {left}")
        model = without_pairs(model, pairs)
    return model, q, moved + notes


def without_violated_limits(model: Model) -> Model:
    """The model whose joints are free to turn where its closed default configuration is beyond their limits."""
    top, q = model.topology, np.asarray(model.q_default)
    coordinates = q[np.maximum(top.scalar_q_of_dof, 0)]
    beyond = np.isin(np.arange(model.nv), top.limited) & ((coordinates < model.lower) | (coordinates > model.upper))
    lower, upper = np.where(beyond, -100.0, model.lower), np.where(beyond, 100.0, model.upper)
    return model.replace(lower=lower, upper=upper)


def planes(model: Model) -> set[int]:
    return {k for k, shape in enumerate(model.topology.shapes) if shape.kind is ShapeType.PLANE}


def without_pairs(model: Model, pairs: Sequence[tuple[int, int]]) -> Model:
    kept = [k for k, pair in enumerate(model.topology.pairs) if pair not in set(pairs)]
    top = dataclasses.replace(model.topology, pairs=tuple(model.topology.pairs[k] for k in kept))
    names = ("pair_friction", "pair_restitution", "pair_impact_friction")
    return model.replace(topology=top, **{name: getattr(model, name)[np.array(kept)] for name in names})


def within_limits(model: Model) -> tuple[np.ndarray, list[str]]:
    """The default configuration with joints beyond their limits put to the limit, and which these are."""
    top, q, found = model.topology, np.array(model.q_default, float), []
    lower, upper = np.asarray(model.lower), np.asarray(model.upper)
    for dof in top.limited:
        place = top.scalar_q_of_dof[dof]
        nearest = float(np.clip(q[place], lower[dof], upper[dof]))
        if nearest != q[place]:
            [name] = [joint.name for joint in top.joints if joint.v_start <= dof < joint.v_start + joint.nv]
            found.append(f"{name} {q[place] - nearest:+.2g}")
            q[place] = nearest
    return q, ["beyond limits: " + ", ".join(found)] if found else []


def put_down(model: Model, q: np.ndarray) -> np.ndarray:
    """q with every tree that can rise put where its lowest shape is `GAP` above the ground."""
    q = q.copy()
    lowest = lowest_points(model, q)
    for place, nodes in lifts(model):
        own = [height for k, height in lowest.items() if model.topology.shapes[k].node in nodes]
        if own:
            q[place] += GAP - min(own)
    return q


def turned(model: Model, q: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """q with the first free base turned at random, put down again."""
    q = q.copy()
    base = next(joint.q_start for joint in model.topology.joints if joint.kind == "free")
    turn = rng.normal(size=4)
    q[base + 3 : base + 7] = turn / np.linalg.norm(turn)
    return put_down(model, q)


def holding_control(model: Model, q: np.ndarray) -> np.ndarray:
    """The controls at which servos exert no force at q; zero for motors."""
    u = np.zeros(model.nu)
    if len(model.actuator_gain):
        places = [
            (joint.v_start, joint.q_start) for joint in model.topology.joints if joint.kind in ("revolute", "prismatic")
        ]
        dofs, coordinates = np.array(places).T
        length = np.asarray(model.actuation)[dofs].T @ q[coordinates]
        gain, bias = (
            np.asarray(a)[:, 0] + np.asarray(a)[:, 1] * length for a in (model.actuator_gain, model.actuator_bias)
        )
        u = np.where(gain != 0, -bias / np.where(gain != 0, gain, 1.0), 0.0)
    return u


def lowest_points(model: Model, q: np.ndarray) -> dict[int, float]:
    """Height of the lowest point of every shape that meets a plane, by shape."""
    rotation, position = shape_placements(model, q)
    top, found = model.topology, {}
    ground = planes(model)
    for i in {k for pair in top.pairs for k in pair if ground & set(pair)} - ground:
        shape, down, size = top.shapes[i], rotation[i][2], np.asarray(model.shape_size[i])
        if shape.kind is ShapeType.MESH:
            reach = -float((np.asarray(model.meshes[shape.mesh]) @ down).min())
        elif shape.kind is ShapeType.SPHERE:
            reach = float(size[0])
        elif shape.kind is ShapeType.CAPSULE:
            reach = float(size[0] + size[1] * abs(down[2]))
        elif shape.kind is ShapeType.CYLINDER:
            reach = float(size[0] * np.hypot(down[0], down[1]) + size[1] * abs(down[2]))
        elif shape.kind is ShapeType.ELLIPSOID:
            reach = float(np.linalg.norm(size * down))
        else:
            reach = float(size @ abs(down))
        found[i] = float(position[i][2]) - reach
    return found


def centres(model: Model, q: np.ndarray) -> np.ndarray:
    """Heights of the centres of mass of the bodies with mass, m."""
    rotation, position = node_placements(model, tree_configuration(model, q))
    return np.array([
        position[k][2] + rotation[k][2] @ np.asarray(model.com[k]) for k in np.flatnonzero(np.asarray(model.mass) > 0)
    ])  # fmt: skip


# -- robots of the package that is installed ------------------------------------------------------------------------------

# Robots of the package example-robot-data, as their files are.
PUBLISHED = {
    "A1": "a1_description/urdf/a1.urdf",
    "ANYmal B": "anymal_b_simple_description/robots/anymal.urdf",
    "Bolt": "bolt_description/robots/bolt.urdf",
    "G1": "g1_description/urdf/g1_29dof_rev_1_0.urdf",
    "Go2": "go2_description/urdf/go2.urdf",
    "HyQ": "hyq_description/robots/hyq_no_sensors.urdf",
    "Panda published": "panda_description/urdf/panda.urdf",
    "Solo12": "solo_description/robots/solo12.urdf",
    "Talos": "talos_data/robots/talos_reduced.urdf",
    "UR5 published": "ur_description/urdf/ur5_gripper.urdf",
}
# Robots whose shapes are boxes, cylinders and spheres alone.
PRIMITIVE = {
    "Allegro": "allegro_hand_description/urdf/allegro_right_hand.urdf",
    "B1": "b1_description/urdf/b1.urdf",
    "Go1 published": "go1_description/urdf/go1.urdf",
    "Laikago": "laikago_description/urdf/laikago.urdf",
    "Panda of spheres": "panda_description/urdf/panda_collision.urdf",
    "quadruped": "quadruped_description/urdf/quadruped.urdf",
    "Romeo": "romeo_description/urdf/romeo_laas_small.urdf",
}


def folder() -> pathlib.Path:
    """Where the package keeps its robots."""
    package = importlib.metadata.distribution("example-robot-data")
    return pathlib.Path(str(package.locate_file("cmeel.prefix/share/example-robot-data/robots")))


def model_of(name: str) -> Model:
    """A bundled model, or a published one with a free base and a ground where it has none; overlapping pairs are left out."""
    files = PUBLISHED | PRIMITIVE
    if name not in files:
        return load_model(name)
    return load(Robot(name, "", files[name]), folder(), packages=folder())[0]


# -- in MuJoCo, from the same file and configuration ----------------------------------------------------------------------

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
