"""Models for the tests of rigid-body dynamics, and the same models in MuJoCo and in Pinocchio.

Random trees are written as MJCF, compiled by MuJoCo, and read by the package. `PinocchioModel` rebuilds any `Model` in Pinocchio
node by node, in depth-first order.
"""

import dataclasses
import inspect

import jax
import mujoco
import numpy as np
import pinocchio as pin

from trajopt.dynamics.model import (
    NODE_NQ,
    NODE_NV,
    FrameSpec,
    JointSpec,
    MimicSpec,
    Model,
    NodeType,
    Topology,
)
from trajopt.models.registry import load_model_from_string

KINDS = ("free", "ball", "slide", "hinge", "hinge+hinge", "slide+ball", "slide+slide+hinge")

# name: (seed, number of trees, bodies per tree, kinds of the roots)
RANDOM_MODELS = {
    "free-tree": (0, 1, 9, ("free",)),
    "fixed-base": (1, 1, 7, ("hinge", "slide", "ball")),
    "forest": (2, 3, 4, ("free", "slide+slide+hinge", "ball")),
    "chain": (3, 1, 12, ("slide+ball",)),
    "single-free": (4, 1, 1, ("free",)),
    "single-hinge": (5, 1, 1, ("hinge",)),
}


def random_mjcf(
    seed: int, trees: int, bodies: int, roots: tuple[str, ...], chain: bool = False, details: bool = False
) -> str:
    """An MJCF forest with random topology, joints, anchors, inertias, armature, damping and springs; details: joints with limits
    and dry friction, fixed bodies, full inertias and a site in each body besides."""
    rng = np.random.default_rng(seed)
    kinds = (*KINDS[1:], "", "") if details else KINDS[1:]

    def numbers(x) -> str:
        return " ".join(repr(float(k)) for k in np.atleast_1d(x))

    def unit(n):
        x = rng.normal(size=n)
        return x / np.linalg.norm(x)

    def joint(kind: str, label: str) -> str:
        if kind == "free":
            return f'<freejoint name="{label}"/>'
        text = ""
        for k, one in enumerate(kind.split("+") if kind else ()):
            common = f'name="{label}{k}" type="{one}" pos="{numbers(0.1 * rng.normal(size=3))}" '
            common += f'armature="{rng.uniform(0, 0.2)}" damping="{rng.uniform(0, 0.5)}" '
            if one != "ball":
                common += f'axis="{numbers(unit(3))}" ref="{rng.uniform(-0.5, 0.5)}" '
                common += f'stiffness="{rng.uniform(0, 3)}" springref="{rng.uniform(-0.5, 0.5)}" '
            if details:
                common += f'frictionloss="{rng.uniform()}" ' + ('limited="true" range="-1.5 2.5"' if one != "ball" else "")
            text += f"<joint {common}/>"
        return text

    def body(children: dict[int, list[int]], k: int, label: str, kind: str) -> str:
        eig = rng.uniform(0.01, 0.05, size=3) + 0.02
        text = f'<body name="{label}{k}" pos="{numbers(0.3 * rng.normal(size=3))}" quat="{numbers(unit(4))}">'
        text += joint(kind, f"{label}{k}j")
        com, turn, mass = numbers(0.1 * rng.normal(size=3)), numbers(unit(4)), rng.uniform(0.3, 2)
        moments = f'quat="{turn}" diaginertia="{numbers(eig)}"'
        if details:
            moments = f'fullinertia="{numbers(0.2 + eig)} {numbers(0.02 * rng.normal(size=3))}"'
            text += f'<site name="site of {label}{k}" pos="{numbers(0.3 * rng.normal(size=3))}" quat="{numbers(unit(4))}"/>'
        text += f'<inertial pos="{com}" mass="{mass}" {moments}/>'
        for child in children[k]:
            text += body(children, child, label, kinds[rng.integers(len(kinds))])
        return text + "</body>"

    world = ""
    for tree in range(trees):
        children: dict[int, list[int]] = {k: [] for k in range(bodies)}
        for k in range(1, bodies):
            children[k - 1 if chain else int(rng.integers(k))].append(k)
        world += body(children, 0, f"t{tree}b", roots[tree % len(roots)])
    return (
        f'<mujoco model="random{seed}"><compiler angle="radian"/><option gravity="0.3 -0.7 -9.6"/>'
        f"<worldbody>{world}</worldbody></mujoco>"
    )


def random_model(name: str) -> tuple[Model, mujoco.MjModel]:
    """A random model by its name in `RANDOM_MODELS`, and MuJoCo's compilation of it."""
    seed, trees, bodies, roots = RANDOM_MODELS[name]
    text = random_mjcf(seed, trees, bodies, roots, chain=name == "chain")
    compiled = mujoco.MjModel.from_xml_string(text)
    return load_model_from_string(text, name=name), compiled


def mimic_model() -> Model:
    """A free-floating tree in which two hinges follow others, one of them placed before its source."""
    model, _ = random_model("free-tree")
    top = model.topology
    scalar = [int(top.v_starts[i]) for i, t in enumerate(top.node_types) if NODE_NV[t] == 1]
    return add_mimics(model, {scalar[0]: (scalar[1], -0.7, 0.2), scalar[4]: (scalar[2], 1.6, -0.1)})


def add_mimics(model: Model, mimics: dict[int, tuple[int, float, float]]) -> Model:
    """`model` with mimic joints {tree DoF: (tree DoF it follows, multiplier, offset)}."""
    top = model.topology
    kept = np.array([j for j in range(top.nv_tree) if j not in mimics])
    dof_to_q = {int(v): int(q) for v, q in zip(top.v_starts, top.q_starts, strict=True)}
    kept_q = np.array([k for k in range(top.nq_tree) if k not in {dof_to_q[j] for j in mimics}])
    specs = tuple(MimicSpec(f"mimic{j}", j, int(np.flatnonzero(kept == s)[0])) for j, (s, _, _) in mimics.items())
    top = dataclasses.replace(top, mimics=specs, joints=(), limited=(), friction_dofs=())
    leaves = {
        k: getattr(model, k)[kept]
        for k in ("armature", "damping", "frictionloss", "stiffness", "spring_reference", "lower", "upper")
    }
    return dataclasses.replace(
        model,
        topology=top,
        **leaves,
        actuation=np.eye(len(kept)),
        mimic_multiplier=np.array([m for _, m, _ in mimics.values()]),
        mimic_offset=np.array([o for _, _, o in mimics.values()]),
        q_default=model.q_default[kept_q],
    )


class PinocchioModel:
    """A `Model` rebuilt in Pinocchio: one joint per node, depth first, with the maps between the two orders.

    Pinocchio's spherical joint has a body-frame angular velocity and its translation joint world axes, so tree
    velocities and forces agree up to the permutation `dofs`: v_pin = v_tree[dofs].
    """

    def __init__(self, model: Model):
        top = model.topology
        children: dict[int, list[int]] = {i: [] for i in range(-1, top.n_nodes)}
        for i, parent in enumerate(top.parents):
            children[parent].append(i)
        self.pin = pin.Model()
        self.pin.gravity = pin.Motion(np.asarray(model.gravity, float), np.zeros(3))
        self.offsets, dofs, coordinates = np.zeros(top.nq_tree), [], []
        joint_of = {-1: 0}
        stack = list(reversed(children[-1]))
        while stack:
            i = stack.pop()
            kind = top.node_types[i]
            axis = np.asarray(model.axis[i], float)
            joint = {
                NodeType.REVOLUTE: lambda a=axis: pin.JointModelRevoluteUnaligned(a),
                NodeType.PRISMATIC: lambda a=axis: pin.JointModelPrismaticUnaligned(a),
                NodeType.BALL: pin.JointModelSpherical,
                NodeType.TRANSLATION: pin.JointModelTranslation,
            }[kind]()
            placement = pin.SE3(np.asarray(model.placement_rotation[i]), np.asarray(model.placement_position[i]))
            joint_of[i] = self.pin.addJoint(joint_of[top.parents[i]], joint, placement, f"node{i}")
            inertia = pin.Inertia.Zero()  # set piece by piece: some published files hold inertias it would refuse
            inertia.mass, inertia.lever = float(model.mass[i]), np.asarray(model.com[i])
            inertia.inertia = np.asarray(model.inertia[i])
            self.pin.appendBodyToJoint(joint_of[i], inertia, pin.SE3.Identity())
            q0, v0 = int(top.q_starts[i]), int(top.v_starts[i])
            dofs += range(v0, v0 + NODE_NV[kind])
            coordinates += [q0 + 1, q0 + 2, q0 + 3, q0] if kind == NodeType.BALL else range(q0, q0 + NODE_NQ[kind])
            if NODE_NV[kind] == 1:
                self.offsets[q0] = model.reference[i]
            stack += reversed(children[i])
        self.joint_of, self.dofs, self.coordinates = joint_of, np.array(dofs), np.array(coordinates)
        self.inverse = np.argsort(self.dofs)
        self.data = self.pin.createData()

    def q(self, q_tree):
        return (np.asarray(q_tree) - self.offsets)[self.coordinates]

    def v(self, v_tree):
        return np.asarray(v_tree)[self.dofs]

    def vector(self, x):
        """A Pinocchio vector over DoFs in tree order."""
        return np.asarray(x)[self.inverse]

    def matrix(self, x):
        """A Pinocchio matrix over DoFs in tree order."""
        return np.asarray(x)[np.ix_(self.inverse, self.inverse)]


def chain_model(length: int) -> Model:
    """A chain of revolute joints with random axes and placements on a fixed base."""
    rng = np.random.default_rng(length)
    axes = rng.normal(size=(length, 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    turns = np.stack([pin.exp3(0.3 * rng.normal(size=3)) for _ in range(length)])
    names = tuple(f"link{i}" for i in range(length))
    joints = tuple(JointSpec(f"joint{i}", "revolute", (i,), i, 1, i, 1) for i in range(length))
    top = Topology(
        f"chain{length}", tuple(range(-1, length - 1)), (NodeType.REVOLUTE,) * length, names, joints,
        tuple(FrameSpec(name, i) for i, name in enumerate(names)),
    )  # fmt: skip
    model, _ = random_model("single-hinge")
    zeros, ones = np.zeros(length), np.ones(length)
    return model.replace(
        topology=top, placement_rotation=turns, placement_position=0.1 * rng.normal(size=(length, 3)), axis=axes,
        reference=zeros, mass=rng.uniform(0.5, 1.5, size=length), com=0.05 * rng.normal(size=(length, 3)),
        inertia=np.tile(0.01 * np.eye(3), (length, 1, 1)), armature=0.1 * ones, damping=0.2 * ones, frictionloss=zeros,
        stiffness=zeros, spring_reference=zeros, lower=-np.inf * ones, upper=np.inf * ones, actuation=np.eye(length),
        control_lower=-np.inf * ones, control_upper=np.inf * ones, frame_rotation=np.tile(np.eye(3), (length, 1, 1)),
        frame_position=np.zeros((length, 3)), q_default=zeros,
    )  # fmt: skip


def mujoco_data(compiled: mujoco.MjModel, q, v=None, force=None) -> mujoco.MjData:
    """MuJoCo's data after its forward pass in the given state, under the generalised force if one is given."""
    data = mujoco.MjData(compiled)
    data.qpos[:] = q
    if v is not None:
        data.qvel[:] = v
    if force is not None:
        data.qfrc_applied[:] = force
    mujoco.mj_forward(compiled, data)
    return data


def relative(got, expected) -> float:
    """Largest deviation over the largest entry."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300))


class Jitted:
    """A module whose functions are compiled; arguments named in `STATIC` are static."""

    STATIC = ("name", "reference", "node", "representation", "dtype")

    def __init__(self, module):
        self._module = module

    def __getattr__(self, attribute: str):
        function = getattr(self._module, attribute)
        static = [n for n in inspect.signature(function).parameters if n in self.STATIC]
        compiled = jax.jit(function, static_argnames=static)
        setattr(self, attribute, compiled)
        return compiled


def random_state(model: Model, seed: int = 0, scale: float = 1.0):
    """Random q (unit quaternions), v, a."""
    rng = np.random.default_rng(seed)
    top = model.topology
    q = rng.uniform(-1, 1, size=top.nq) * scale
    for start, _ in top.ball_starts:
        quaternion = rng.normal(size=4)
        q[start : start + 4] = quaternion / np.linalg.norm(quaternion)
    return q, rng.normal(size=top.nv) * scale, rng.normal(size=top.nv) * scale
