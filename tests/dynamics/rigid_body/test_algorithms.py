"""Inverse and forward dynamics, mass matrices and their derivatives against MuJoCo and Pinocchio, and by their own identities.

Random trees have everything the equation of motion knows: armature, damping, springs. Bundled models are judged by MuJoCo, which
compiles the same file, and, for derivatives, by Pinocchio. Published URDF files are judged by Pinocchio's own reader. Errors are
relative to the largest entry, since some of those files hold inertias that no body can have.
"""

import inspect
import warnings

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pinocchio as pin
import pytest
from published import robot_file

from dynamics.models_for_tests import (
    RANDOM_MODELS,
    PinocchioModel,
    chain_model,
    mimic_model,
    mujoco_data,
    random_model,
    random_state,
    relative,
)
from trajopt import models
from trajopt.dynamics.rigid_body import aba, conventions, crba, derivatives, rnea
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.energy import potential_energy
from trajopt.dynamics.rigid_body.kinematics import expand_q, expand_v
from trajopt.errors import ModelError, ShapeError

TOLERANCE = 1e-12  # rounding over at most twelve bodies; asked for is 1e-10
DERIVATIVES = 1e-11  # asked for is 1e-8
HUMAN = "human_description/robots/human.urdf"
PUBLISHED = (
    "a1_description/urdf/a1.urdf",
    "alexander_description/urdf/alexander_v1.lowerBodyOnly.urdf",
    "double_pendulum_description/urdf/double_pendulum_continuous.urdf",
    HUMAN,
    "icub_description/robots/icub_reduced.urdf",
    "talos_data/robots/talos_full_v2.urdf",
    "ur_description/urdf/ur5_robot.urdf",
)
forest_and_mimic = pytest.mark.parametrize("build", [lambda: random_model("forest")[0], mimic_model], ids=["forest", "mimic"])


@jax.jit
def everything(model, q, v, a):
    """Forces, mass matrix, derivatives, and the accelerations that both forward dynamics return for those forces."""
    tau = rnea.inverse_dynamics(model, q, v, a)
    by_q, by_v, M = derivatives.rnea_derivatives(model, q, v, a)
    back = crba.forward_dynamics(model, q, v, tau)
    articulated = back if model.topology.mimics else aba.aba(model, q, v, tau)
    return {
        "tau": tau, "rnea": rnea.rnea(model, q, v, a), "passive": rnea.passive_forces(model, q, v),
        "bias": rnea.bias_forces(model, q, v), "M": M, "crba": crba.crba(model, q), "mass": crba.mass_matrix(model, q),
        "by_q": by_q, "by_v": by_v, "accelerations": [back, articulated],
        "residuals": [rnea.inverse_dynamics(model, q, v, x) - tau for x in (back, articulated)],
    }  # fmt: skip


def results(model, q, v, a):
    return jax.tree.map(np.asarray, everything(model.to_device(), q, v, a))


@jax.jit
def accelerations(model, q, v, tau):
    return crba.forward_dynamics(model, q, v, tau), aba.aba(model, q, v, tau)


inverse_dynamics = jax.jit(rnea.inverse_dynamics)
forward_derivatives = jax.jit(derivatives.forward_dynamics_derivatives)
regressor = jax.jit(derivatives.inertial_regressor)


def symmetric(upper, size):
    upper = np.triu(np.asarray(upper).reshape(size, size))
    return upper + np.triu(upper, 1).T


def on_tree(model, q, v, a):
    """(Pinocchio's model of the tree, its q, v and a, the map T of the user's DoFs to those of the tree)."""
    judge, T = PinocchioModel(model), model.mimic_matrix()
    q, v, a = (np.asarray(f(model, x)) for f, x in ((expand_q, q), (expand_v, v), (expand_v, a)))
    return judge, (judge.q(q), judge.v(v), judge.v(a)), np.eye(model.nv) if T is None else np.asarray(T)


def tree_derivatives(model, q, v, a):
    """Pinocchio's derivatives of the forces of the tree, projected on the user's DoFs, springs and dampers added."""
    judge, state, T = on_tree(model, q, v, a)
    pin.computeRNEADerivatives(judge.pin, judge.data, *state)
    by_q = T.T @ judge.matrix(judge.data.dtau_dq) @ T + np.diag(model.stiffness * (model.topology.scalar_q_of_dof >= 0))
    return by_q, T.T @ judge.matrix(judge.data.dtau_dv) @ T + np.diag(model.damping)


def check_inverses(got, a):
    """Backward error of both forward dynamics, whatever the condition of M."""
    scale = np.abs(got["M"]).max() * np.abs(a).max() + np.abs(got["tau"]).max()
    for residual in got["residuals"]:
        assert np.abs(residual).max() / scale < 1e-12


# -- random trees --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [n if n in ("forest", "fixed-base") else pytest.param(n, marks=pytest.mark.slow) for n in RANDOM_MODELS]
)
def test_random_trees(name):
    model, compiled = random_model(name)
    judge, n = PinocchioModel(model), model.nv
    judge.pin.armature = judge.v(model.armature)
    for seed in range(2):
        q, v, a = random_state(model, seed)
        got, data = results(model, q, v, a), mujoco_data(compiled, q, v, force=a)
        assert relative(got["accelerations"][1], a) < 1e-12
        check_inverses(got, a)
        full = np.zeros((n, n))
        mujoco.mj_fullM(compiled, data, full)
        assert relative(got["mass"], full) < TOLERANCE and relative(got["M"], full) < DERIVATIVES
        assert relative(got["mass"], got["mass"].T) < 1e-15 and np.linalg.eigvalsh(got["mass"]).min() > 0
        for acceleration in accelerations(model.to_device(), q, v, a):  # a as forces
            assert relative(acceleration, data.qacc) < 1e-10
        data.qacc[:] = a
        mujoco.mj_inverse(compiled, data)
        for key, expected in (("tau", data.qfrc_inverse), ("passive", data.qfrc_passive), ("bias", data.qfrc_bias)):
            assert relative(got[key], expected) < TOLERANCE, key
        free = pin.Model(judge.pin)
        free.armature = np.zeros(n)
        state = judge.q(q), judge.v(v), judge.v(a)
        assert relative(got["rnea"], judge.vector(pin.rnea(free, free.createData(), *state))) < TOLERANCE
        assert relative(got["crba"], judge.matrix(symmetric(pin.crba(free, free.createData(), state[0]), n))) < TOLERANCE
        by_q, by_v = tree_derivatives(model, q, v, a)
        assert relative(got["by_q"], by_q) < DERIVATIVES and relative(got["by_v"], by_v) < DERIVATIVES


# A single hinge without damping has no derivative by v to compare.
@pytest.mark.parametrize("name", [name for name in RANDOM_MODELS if name != "single-hinge"])
def test_derivatives_of_forward_dynamics_are_pinocchios(name):
    """Without springs and dampers, which Pinocchio's algorithm does not know."""
    model, _ = random_model(name)
    model = model.replace(stiffness=0 * model.stiffness, damping=0 * model.damping)
    judge = PinocchioModel(model)
    judge.pin.armature = judge.v(model.armature)
    data = judge.pin.createData()
    q, v, tau = random_state(model, 3)
    pin.computeABADerivatives(judge.pin, data, judge.q(q), judge.v(v), judge.v(tau))
    a, by_q, by_v, inverse = forward_derivatives(model.to_device(), q, v, tau)
    assert relative(a, judge.vector(data.ddq)) < 1e-10
    assert relative(by_q, judge.matrix(data.ddq_dq)) < 1e-9
    assert relative(by_v, judge.matrix(data.ddq_dv)) < 1e-9
    assert relative(inverse, judge.matrix(symmetric(data.Minv, model.nv))) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("build", [lambda: random_model("fixed-base")[0], mimic_model], ids=["fixed-base", "mimic"])
def test_closed_forms_are_automatic_derivatives(build):
    """With everything the equation of motion has: mimic joints, armature, damping, springs."""
    model = build().to_device()
    q, v, a = (jnp.asarray(x) for x in random_state(model, 4))
    zero, got = jnp.zeros(model.nv), everything(model, q, v, a)
    tangent = lambda dq, v, a: rnea.inverse_dynamics(model, integrate(model, q, dq), v, a)  # noqa: E731
    expected = jax.jit(jax.jacfwd(tangent, (0, 1, 2)))(zero, v, a)
    for key, wanted in zip(("by_q", "by_v", "M"), expected, strict=True):
        assert relative(got[key], wanted) < DERIVATIVES
    tau = got["tau"]
    tangent = lambda dq, v, tau: crba.forward_dynamics(model, integrate(model, q, dq), v, tau)  # noqa: E731
    expected = jax.jit(jax.jacrev(tangent, (0, 1, 2)))(zero, v, tau)
    back, *slopes = forward_derivatives(model, q, v, tau)
    assert relative(back, a) < 1e-10 and relative(got["accelerations"][0], a) < 1e-11
    for one, wanted in zip(slopes, expected, strict=True):
        assert relative(one, wanted) < 1e-9


def test_mimic_joints_enter_through_their_jacobian():
    model = mimic_model()
    q, v, a = random_state(model, 6)
    judge, state, T = on_tree(model, q, v, a)
    assert relative(results(model, q, v, a)["rnea"], T.T @ judge.vector(pin.rnea(judge.pin, judge.data, *state))) < TOLERANCE
    with pytest.raises(ModelError, match="mimic joints .*use forward_dynamics"):
        aba.aba(model, q, v, a)


@forest_and_mimic
def test_shared_terms_and_gravity(build):
    """M a + h; gravity is the gradient of its potential, and the bias at rest."""
    model = build().to_device()
    q, v, a = random_state(model, 5)
    got, terms = results(model, q, v, a), jax.jit(derivatives.dynamics_terms)(model, q, v)
    assert relative(terms.M, got["mass"]) < DERIVATIVES
    assert relative(terms.h, got["bias"] - got["passive"]) < DERIVATIVES
    assert relative(terms.M @ a + terms.h, got["tau"]) < DERIVATIVES
    assert relative(derivatives.inverse_mass_matrix(terms.M) @ terms.M, np.eye(model.nv)) < 1e-10
    loose, zero = model.replace(stiffness=jnp.zeros(model.nv)), jnp.zeros(model.nv)
    gravity = jax.jit(rnea.generalised_gravity)(loose, q)
    energy = lambda dq: potential_energy(loose, integrate(loose, q, dq))  # noqa: E731
    assert relative(gravity, jax.jit(jax.grad(energy))(zero)) < TOLERANCE
    assert relative(gravity, jax.jit(rnea.bias_forces)(loose, q, zero)) < TOLERANCE


def inertial_parameters(m, c, inertia):
    J = inertia + m * (c @ c * np.eye(3) - np.outer(c, c))
    return np.array([m, *(m * c), J[0, 0], J[0, 1], J[1, 1], J[0, 2], J[1, 2], J[2, 2]])


def body_of(row):
    m, c = row[0], row[1:4] / row[0]
    xx, xy, yy, xz, yz, zz = row[4:]
    J = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    return m, c, J - m * (c @ c * np.eye(3) - np.outer(c, c))


@forest_and_mimic
def test_inverse_dynamics_is_linear_in_the_inertial_parameters(build):
    """With the model's parameters, and with random ones, so that each column counts."""
    model = build()
    q, v, a = random_state(model, 6)
    Y = np.asarray(regressor(model, q, v, a))
    assert Y.shape == (model.nv, model.topology.n_nodes, 10)
    own = np.stack([inertial_parameters(*body) for body in zip(model.mass, model.com, model.inertia, strict=True)])
    assert relative(np.einsum("vip,ip->v", Y, own), results(model, q, v, a)["rnea"]) < DERIVATIVES
    other = np.random.default_rng(0).normal(size=own.shape)
    mass, com, inertia = (np.array(x) for x in zip(*map(body_of, other), strict=True))
    changed = results(model.replace(mass=mass, com=com, inertia=inertia), q, v, a)["rnea"]
    assert relative(np.einsum("vip,ip->v", Y, other), changed) < 1e-10


def test_regressor_is_pinocchios():
    model, _ = random_model("free-tree")
    judge = PinocchioModel(model)
    q, v, a = random_state(model, 7)
    expected = pin.computeJointTorqueRegressor(judge.pin, judge.data, judge.q(q), judge.v(v), judge.v(a))
    order = [judge.joint_of[i] - 1 for i in range(model.topology.n_nodes)]
    assert relative(regressor(model, q, v, a), expected.reshape(model.nv, -1, 10)[judge.inverse][:, order]) < DERIVATIVES


# -- transformations, precision, limits ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "function, precision",
    [(rnea.rnea, 1e-5), (crba.forward_dynamics, 1e-3), (aba.aba, 1e-3), (derivatives.forward_dynamics_derivatives, 1e-2)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_batches_precision_and_both_modes_of_differentiation(function, precision):
    model, _ = random_model("fixed-base")
    device, state = model.to_device(), [jnp.asarray(x) for x in random_state(model, 8)]
    first = lambda *arguments: jax.tree.leaves(function(*arguments))[0]  # noqa: E731
    one = jax.tree.leaves(jax.jit(function)(device, *state))
    batch = [jnp.stack([x, x]) for x in state]
    for x, y in zip(one, jax.tree.leaves(jax.jit(jax.vmap(function, (None, 0, 0, 0)))(device, *batch)), strict=True):
        assert relative(y[1], x) < 1e-11
    single = jax.jit(function)(model.to_device(jnp.float32), *(x.astype(jnp.float32) for x in state))
    for x, y in zip(one, jax.tree.leaves(single), strict=True):
        assert y.dtype == jnp.float32 and relative(y, x) < precision
    forward, reverse = (jax.jit(mode(first, (2, 3)))(device, *state) for mode in (jax.jacfwd, jax.jacrev))
    for x, y in zip(forward, reverse, strict=True):
        assert relative(y, x) < 1e-10


def test_forces_do_not_depend_on_where_the_robot_stands():
    """The tree's own origin: 1e6 m away only the rounding of the position itself remains (1e-10 m)."""
    model, _ = random_model("free-tree")
    q, v, a = random_state(model, 8)
    near, far = np.array(q), np.array(q)
    near[:3] = np.round(q[:3])
    far[:3] = near[:3] + np.array([1e6, -1e6, 1e6])
    assert relative(*(results(model, place, v, a)["rnea"] for place in (far, near))) < 1e-8


def test_a_deep_chain_compiles_as_a_scan():
    def program(length):
        model = chain_model(length)
        return str(jax.make_jaxpr(aba.aba)(model, *random_state(model, 5)))

    assert program(60).count("scan[") == 2
    # Both need six rounds of pointer doubling; nothing else may depend on the depth.
    assert abs(len(program(60).splitlines()) - len(program(40).splitlines())) < 10
    model = chain_model(60)
    q, v, a = (0.3 * x for x in random_state(model, 5))
    # 60 joints in series: the inertia felt by the first is 1e5 times that of the last.
    assert relative(results(model, q, v, a)["accelerations"][1], a) < 1e-9


def test_what_is_impossible_is_said():
    """NaN of a mass matrix that is not positive definite; a shape by its name; the precision of a NumPy model is its state's."""
    hinge, _ = random_model("single-hinge")
    empty = hinge.replace(mass=0 * hinge.mass, inertia=0 * hinge.inertia, armature=0 * hinge.armature - 1.0)
    assert np.isnan(jax.jit(crba.forward_dynamics)(empty, *random_state(hinge, 0))).all()
    model, _ = random_model("single-free")
    q, v, a = random_state(model, 0)
    with pytest.raises(ShapeError, match=r"v has shape \(7,\), expected \(6,\)"):
        inspect.unwrap(rnea.rnea)(model, q, q, a)  # past the shape checks of the test suite, if on
    assert inverse_dynamics(model, *(x.astype(np.float32) for x in (q, v, a))).dtype == jnp.float32


# -- robots --------------------------------------------------------------------------------------------------------------


def load(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", models.ModelWarning)
        return models.load_model(path, **options)


def check_against_pinocchios_reader(model, path, got, q, v, a):
    judge = pin.buildModelFromUrdf(str(path))
    data = judge.createData()
    joints = dict(zip(list(judge.names)[1:], list(judge.joints)[1:], strict=True))
    continuous = [name for name, joint in joints.items() if joint.nq > joint.nv]
    order = np.concatenate([np.arange(j.v_start, j.v_start + j.nv) for j in map(model.topology.joint, joints)])
    inverse = np.argsort(order)
    pair = conventions.to_pinocchio(model, q, v, joint_names=list(joints), continuous=continuous)
    q_pin, v_pin = (np.asarray(x) for x in pair)
    assert relative(got["rnea"], pin.rnea(judge, data, q_pin, v_pin, a[order])[inverse]) < 1e-10
    full = symmetric(pin.crba(judge, data, q_pin), model.nv)[np.ix_(inverse, inverse)]
    assert relative(got["M"] - np.diag(model.armature), full) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", models.bundled_models())
def test_bundled(name):
    model = load(name)
    compiled = mujoco.MjModel.from_xml_path(str(models.bundled_file(name)))
    compiled.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    data = mujoco.MjData(compiled)
    for seed in range(2):
        q, v, a = random_state(model, seed)
        got = results(model, q, v, a)
        data.qpos[:], data.qvel[:], data.qacc[:] = q, v, a
        mujoco.mj_inverse(compiled, data)
        assert relative(got["tau"], data.qfrc_inverse) < 1e-10
        full = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(compiled, data, full)
        assert relative(got["M"], full) < 1e-10
        # A mass on sliders alone has derivatives that vanish; rounding is then judged by the forces.
        scale = np.abs(data.qfrc_inverse).max()
        for key, expected in zip(("by_q", "by_v"), tree_derivatives(model, q, v, a), strict=True):
            assert np.abs(got[key] - expected).max() < 1e-8 * max(np.abs(expected).max(), scale)
        check_inverses(got, a)


ON_BASES = [(file, floating) for file in PUBLISHED for floating in (False, True)]


@pytest.mark.parametrize(
    "file, floating", [pytest.param(*case, marks=() if case == (HUMAN, False) else pytest.mark.slow) for case in ON_BASES]
)
def test_published(file, floating):
    path = robot_file(file)
    model = load(path, floating_base=floating)
    q, v, a = random_state(model, 1 + floating)
    got = results(model, q, v, a)
    if not (floating or model.topology.mimics):  # which Pinocchio's reader turns into joints of their own
        check_against_pinocchios_reader(model, path, got, q, v, a)
    # Pinocchio's derivatives need its joints depth first; the rebuilt model is, its own reader's need not be.
    by_q, by_v = tree_derivatives(model, q, v, a)
    assert relative(got["by_q"], by_q) < 1e-8 and relative(got["by_v"], by_v) < 1e-8
    check_inverses(got, a)
