"""The MJCF reader against MuJoCo itself: kinematics, mass matrix, limits, actuation, contact pairs."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from dynamics.models_for_tests import random_mjcf

from trajopt import models
from trajopt.dynamics.model import WORLD, ShapeType
from trajopt.dynamics.rigid_body.actuation import actuation_force, force_slopes
from trajopt.dynamics.rigid_body.configuration import integrate
from trajopt.dynamics.rigid_body.crba import mass_matrix
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.errors import ModelError

pytestmark = pytest.mark.check

ROUNDING = 1e-12  # a few hundred operations on numbers of order one, in float64


def both(xml: str):
    """Our model, MuJoCo's and a data object."""
    reference = mujoco.MjModel.from_xml_string(xml)
    return models.load_model_from_string(xml), reference, mujoco.MjData(reference)


@jax.jit
def placements_and_inertia(model, q):
    return kinematics(model, q), mass_matrix(model, q)


@pytest.mark.parametrize("seed", range(6))
def test_random_trees_match_mujoco(seed):
    model, reference, data = both(random_mjcf(seed, 3, 5, ("free", "hinge+slide", "", "ball"), details=True))
    top = model.topology
    assert (model.nq, model.nv) == (reference.nq, reference.nv)
    np.testing.assert_allclose(model.gravity, reference.opt.gravity)
    np.testing.assert_allclose(model.q_default, reference.qpos0, atol=1e-15)
    for name, theirs in (
        ("armature", reference.dof_armature),
        ("damping", reference.dof_damping),
        ("frictionloss", reference.dof_frictionloss),
    ):
        np.testing.assert_array_equal(getattr(model, name), theirs)
    for j in range(reference.njnt):
        if reference.jnt_type[j] >= 2:
            q, v = reference.jnt_qposadr[j], reference.jnt_dofadr[j]
            assert model.stiffness[v] == reference.jnt_stiffness[j]
            assert model.spring_reference[v] == reference.qpos_spring[q]
            assert (model.lower[v], model.upper[v]) == tuple(reference.jnt_range[j])
    rng = np.random.default_rng(seed + 100)
    device = model.to_device()
    for _ in range(3):
        q = rng.normal(size=reference.nq)
        mujoco.mj_normalizeQuat(reference, q)
        data.qpos[:] = q
        mujoco.mj_forward(reference, data)
        kin, inertia = placements_and_inertia(device, q)
        for k, frame in enumerate(top.frames):
            kind = "site" if frame.name.startswith("site") else "body"
            index = getattr(reference, kind)(frame.name).id
            xmat, xpos = (data.site_xmat, data.site_xpos) if kind == "site" else (data.xmat, data.xpos)
            rotation = np.eye(3) if frame.node == WORLD else np.asarray(kin.rotation[frame.node])
            position = np.zeros(3) if frame.node == WORLD else np.asarray(kin.position[frame.node])
            np.testing.assert_allclose(rotation @ model.frame_rotation[k], xmat[index].reshape(3, 3), atol=ROUNDING)
            np.testing.assert_allclose(position + rotation @ model.frame_position[k], xpos[index], atol=ROUNDING)
        full = np.zeros((reference.nv, reference.nv))
        mujoco.mj_fullM(reference, data, full)
        np.testing.assert_allclose(inertia, full, atol=ROUNDING * np.abs(full).max())


ROBOT = """
<mujoco model="arm"><compiler angle="radian"/>
  <default><geom friction="0.6 0 0"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" friction="0.9"/>
    <geom name="wall" type="box" size=".1 .1 .1"/>
    <geom name="backdrop" type="plane" size="1 1 1" contype="0" conaffinity="0"/>
    <body name="base" pos="0 0 1"><freejoint name="root"/><geom name="base" size="0.1"/>
      <body name="upper"><joint name="shoulder" range="-1 1"/><geom name="upper" type="capsule" size="0.1 0.2"/>
        <body name="welded"><geom name="welded" type="cylinder" size="0.1 0.2"/></body>
        <body name="lower"><joint name="elbow"/><geom name="lower" type="box" size="0.1 0.2 0.3" priority="1"/>
          <geom name="visual" size="0.5" contype="0" conaffinity="0" condim="6"/>
          <geom name="hidden" size="0.5" contype="0" conaffinity="0" group="3"/>
          <geom name="slippery" type="ellipsoid" size=".1 .2 .3" condim="1" priority="2"/>
        </body>
      </body>
      <body name="other"><joint name="wrist" type="ball"/><geom name="other" size="0.1" contype="2" conaffinity="4"/>
        <geom name="hand" size="0.1"/></body>
    </body>
  </worldbody>
  %s
</mujoco>"""


def pair_names(model) -> set[tuple[str, str]]:
    shapes = model.topology.shapes
    return {(shapes[a].name, shapes[b].name) for a, b in model.topology.pairs}


def mujoco_pairs(xml: str) -> set[frozenset[str]]:
    """Pairs that MuJoCo lets touch, found by asking for contacts within a margin wider than the scene."""
    xml = xml.replace("<geom ", '<geom margin="50" ').replace("<pair ", '<pair margin="50" ')
    reference = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(reference)
    mujoco.mj_forward(reference, data)
    return {frozenset(reference.geom(int(g)).name for g in contact.geom) for contact in data.contact}


@pytest.mark.parametrize(
    "extra",
    [
        "",
        '<contact><exclude body1="base" body2="lower"/></contact>',
        '<contact><pair geom1="base" geom2="upper" friction="0.3 0.3 0 0 0"/></contact>',
        '<option><flag filterparent="disable"/></option>',
    ],
)
def test_contact_pairs_match_mujoco(extra):
    model = models.load_model_from_string(ROBOT % extra)
    assert {frozenset(pair) for pair in pair_names(model)} == mujoco_pairs(ROBOT % extra)
    names = {shape.name for shape in model.topology.shapes}
    assert "visual" in names and names.isdisjoint({"hidden", "backdrop"})


def test_planes_and_world_shapes_come_second():
    names = pair_names(models.load_model_from_string(ROBOT % ""))
    assert ("lower", "floor") in names and ("base", "wall") in names
    assert not any(first in ("floor", "wall") for first, _ in names)


def test_pair_friction_follows_priority_and_maximum():
    extra = '<contact><pair geom1="base" geom2="upper" friction="0.3 0.3 0 0 0"/></contact>'
    model = models.load_model_from_string(ROBOT % extra)
    shapes = model.topology.shapes
    friction = {
        (shapes[a].name, shapes[b].name): mu
        for (a, b), mu in zip(model.topology.pairs, model.pair_friction, strict=True)
    }
    assert friction["base", "floor"] == 0.9
    assert friction["lower", "floor"] == 0.6  # the box has priority
    assert friction["slippery", "floor"] == 0.0  # condim 1
    assert friction["base", "upper"] == 0.3  # explicit


def test_shapes_keep_type_size_and_place():
    model, reference, data = both(ROBOT % "")
    mujoco.mj_forward(reference, data)
    kin = jax.jit(kinematics)(model.to_device(), model.q_default)
    kinds = {
        "floor": ShapeType.PLANE,
        "base": ShapeType.SPHERE,
        "upper": ShapeType.CAPSULE,
        "welded": ShapeType.CYLINDER,
        "lower": ShapeType.BOX,
        "slippery": ShapeType.ELLIPSOID,
    }
    for k, shape in enumerate(model.topology.shapes):
        g = reference.geom(shape.name).id
        assert shape.kind == kinds.get(shape.name, shape.kind)
        np.testing.assert_array_equal(model.shape_size[k], reference.geom_size[g])
        rotation = np.eye(3) if shape.node == WORLD else np.asarray(kin.rotation[shape.node])
        position = np.zeros(3) if shape.node == WORLD else np.asarray(kin.position[shape.node])
        np.testing.assert_allclose(position + rotation @ model.shape_position[k], data.geom_xpos[g], atol=ROUNDING)
        np.testing.assert_allclose(rotation @ model.shape_rotation[k], data.geom_xmat[g].reshape(3, 3), atol=ROUNDING)


def test_restitution_comes_from_custom_numbers():
    extra = (
        '<custom><numeric name="trajopt_restitution" data="0.2"/><numeric name="trajopt_restitution/base" data="0.7"/>'
        "</custom>"
    )
    model = models.load_model_from_string(ROBOT % extra)
    shapes = model.topology.shapes
    found = {
        frozenset((shapes[a].name, shapes[b].name)): e
        for (a, b), e in zip(model.topology.pairs, model.pair_restitution, strict=True)
    }
    assert found[frozenset(("base", "floor"))] == 0.7 and found[frozenset(("upper", "floor"))] == 0.2
    with pytest.raises(ModelError, match="trajopt_restitution' is 2.0; expected 0 to 1"):
        models.load_model_from_string(ROBOT % '<custom><numeric name="trajopt_restitution" data="2"/></custom>')


def test_motors_give_mujocos_generalised_forces():
    extra = """<actuator><motor name="a" joint="shoulder" gear="7" ctrllimited="true" ctrlrange="-2 3"/>
      <motor name="b" joint="wrist" gear="1 2 3"/><motor name="c" joint="root" gear="1 2 3 4 5 6"/>
      <motor name="d" tendon="cord" gear="2"/><motor name="e" joint="elbow" forcelimited="true" forcerange="-5 5"/>
      <general name="f" joint="elbow" gainprm="4" gear="2" forcelimited="true" forcerange="-5 6"/></actuator>
      <tendon><fixed name="cord"><joint joint="shoulder" coef="0.5"/><joint joint="elbow" coef="-3"/></fixed>
      </tendon>"""
    model, reference, data = both(ROBOT % extra)
    assert model.topology.actuators == ("a", "b", "c", "d", "e", "f")
    rng = np.random.default_rng(0)
    u = 0.1 * rng.normal(size=6)
    q = rng.normal(size=reference.nq)
    mujoco.mj_normalizeQuat(reference, q)
    data.qpos[:], data.ctrl[:] = q, u
    mujoco.mj_forward(reference, data)
    np.testing.assert_allclose(model.actuation @ u, data.qfrc_actuator, atol=1e-12)
    np.testing.assert_array_equal(model.control_lower, [-2, -np.inf, -np.inf, -np.inf, -5, -5 / 4])
    np.testing.assert_array_equal(model.control_upper, [3, np.inf, np.inf, np.inf, 5, 6 / 4])


SERVOS = """<tendon><fixed name="cord"><joint joint="shoulder" coef="0.5"/><joint joint="elbow" coef="-3"/></fixed></tendon>
  <actuator>
    <position name="hold" joint="elbow" kp="5" kv="0.7" gear="3" forcerange="-4 3"/>
    <position name="critical" joint="shoulder" kp="20" dampratio="1" ctrlrange="-1 1"/>
    <velocity name="turn" joint="shoulder" kv="2"/>
    <damper name="brake" tendon="cord" kv="3" ctrlrange="0 2"/>
    <general name="law" tendon="cord" gear="-2" gaintype="affine" gainprm="1.5 0.3 -0.2" biastype="affine" biasprm="0.4 -2 0.1"/>
    <general name="floating" joint="root" gear="1 2 3 4 5 6" gainprm="2" biastype="affine" biasprm="0.1 7 -0.3"/>
    <velocity name="gyro" joint="wrist" kv="0.5" gear="0 0 1"/>
    <motor name="motor" joint="elbow" gear="2" forcerange="-1 1"/>
  </actuator>"""


def servos():
    """(our model, MuJoCo's, its data) of `SERVOS`, the elbow's joint with a range of its own for all actuators together."""
    xml = (ROBOT % SERVOS).replace('<joint name="elbow"/>', '<joint name="elbow" actuatorfrcrange="-6 5"/>')
    return both(xml)


def test_servos_give_mujocos_generalised_forces():
    """At random states, gains with dampratio as compiled, within and beyond the ranges of actuators and joint."""
    model, reference, data = servos()
    device = model.to_device()
    rng = np.random.default_rng(0)
    saturated = np.zeros(2, bool)
    for _ in range(40):
        q, v = rng.normal(size=reference.nq), rng.normal(size=reference.nv)
        u = np.clip(rng.normal(size=reference.nu), model.control_lower, model.control_upper)
        mujoco.mj_normalizeQuat(reference, q)
        data.qpos[:], data.qvel[:], data.ctrl[:] = q, v, u
        mujoco.mj_forward(reference, data)
        tau = actuation_force(device, jnp.asarray(q), jnp.asarray(v), jnp.asarray(u))
        np.testing.assert_allclose(tau, data.qfrc_actuator, atol=1e-12 * max(1.0, np.abs(data.qfrc_actuator).max()))
        saturated |= [np.isin(data.actuator_force[0], (-4, 3)), np.isin(data.qfrc_actuator[7], (-6, 5))]
    assert saturated.all()
    assert (model.control_lower[1], model.control_upper[1]) == (-1, 1) and np.isinf(model.control_upper[0])


def test_slopes_of_servo_forces():
    """d tau / d (u, q, v) against automatic differentiation, also where a force saturates."""
    model, *_ = servos()
    device = model.to_device()
    rng = np.random.default_rng(1)
    for _ in range(8):
        q, v, u = (jnp.asarray(rng.normal(size=n)) for n in (model.nq, model.nv, model.nu))
        q = integrate(device, q, jnp.zeros(model.nv))

        def force(z, q=q, v=v, u=u):
            n = model.nv
            return actuation_force(device, integrate(device, q, z[:n]), v + z[n : 2 * n], u + z[2 * n :])

        expected = jax.jacfwd(force)(jnp.zeros(2 * model.nv + model.nu))
        slopes = force_slopes(device, q, v, u)
        ours = jnp.concatenate([slopes.by_q, slopes.by_v, slopes.by_control], 1)
        np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_a_servo_on_a_joint_that_follows_another():
    """Its length is that of the follower, offset included, and so is its lever arm."""
    xml = """<mujoco><compiler angle="radian"/>
      <worldbody><body><geom size="0.1"/><joint name="a" ref="0.3"/>
        <body pos="0 0 1"><geom size="0.1"/><joint name="b"/></body></body></worldbody>
      <equality><joint joint1="b" joint2="a" polycoef="0.5 -2 0 0 0"/></equality>
      <actuator><position joint="b" kp="3"/></actuator></mujoco>"""
    model, *_ = both(xml)
    qa, u = 0.9, 0.2
    qb = model.mimic_multiplier[0] * qa + model.mimic_offset[0]
    tau = actuation_force(model.to_device(), jnp.array([qa]), jnp.zeros(1), jnp.array([u]))
    np.testing.assert_allclose(tau, [-2 * 3 * (u - qb)], atol=1e-14)


def test_actuators_with_a_state_are_left_out_by_name():
    extra = """<actuator><intvelocity name="integrator" joint="elbow" kp="5" actrange="-1 1"/>
      <position name="slow" joint="elbow" kp="5" timeconst="0.1"/><position name="servo" joint="elbow" kp="5"/>
      <position name="pointing" joint="wrist" kp="5" gear="1 0 0"/></actuator>"""
    match = r"left out: 'integrator' .*'integrator', is a state.*'slow' .*'filterexact', is a state.*'pointing' .servo on"
    with pytest.warns(models.ModelWarning, match=match):
        model = models.load_model_from_string(ROBOT % extra)
    assert model.topology.actuators == ("servo",)


def test_joint_force_range_limits_motors():
    xml = (ROBOT % '<actuator><motor name="m" joint="elbow" gear="2"/></actuator>').replace(
        '<joint name="elbow"/>', '<joint name="elbow" actuatorfrcrange="-3 3"/>'
    )
    model = models.load_model_from_string(xml)
    assert (model.control_lower[0], model.control_upper[0]) == (-1.5, 1.5)


def test_site_transmissions_are_left_out_with_a_warning():
    xml = (ROBOT % '<actuator><motor name="thrust" site="tip" gear="0 0 1 0 0 0"/></actuator>').replace(
        '<joint name="elbow"/>', '<joint name="elbow"/><site name="tip"/>'
    )
    with pytest.warns(models.ModelWarning, match=r"left out: 'thrust' \(site\)"):
        model = models.load_model_from_string(xml)
    assert "thrust" not in model.topology.actuators


def test_without_actuators_every_joint_but_the_free_one_has_a_motor():
    model = models.load_model_from_string(ROBOT % "")
    assert model.topology.actuators == ("shoulder", "elbow", "wrist:x", "wrist:y", "wrist:z")
    np.testing.assert_array_equal(model.actuation, np.eye(11)[:, 6:])
    assert np.all(np.isinf(model.control_upper))


def test_joint_coupling_becomes_mimic():
    xml = """<mujoco><compiler angle="radian"/>
      <worldbody><body><geom size="0.1"/><joint name="a" ref="0.3" armature="0.1"/>
        <body pos="0 0 1"><geom size="0.1"/><joint name="b" ref="-0.2" armature="0.5" damping="2"/></body>
      </body></worldbody>
      <equality><joint joint1="b" joint2="a" polycoef="0.5 -2 0 0 0"/></equality></mujoco>"""
    model, reference, data = both(xml)
    assert [j.name for j in model.topology.joints] == ["a"] and [m.name for m in model.topology.mimics] == ["b"]
    qa = 0.9
    qb = model.mimic_multiplier[0] * qa + model.mimic_offset[0]
    # MuJoCo's residual of the constraint vanishes there
    data.qpos[:] = [qa, qb]
    mujoco.mj_forward(reference, data)
    np.testing.assert_allclose(data.efc_pos[0], 0, atol=1e-14)
    full = np.zeros((2, 2))
    mujoco.mj_fullM(reference, data, full)
    t = np.array([1.0, -2.0])
    ours = jax.jit(mass_matrix)(model.to_device(), np.array([qa]))
    np.testing.assert_allclose(ours[0, 0], t @ full @ t, rtol=1e-13)
    assert model.damping[0] == 8.0


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            '<tendon><fixed name="cord" stiffness="3"><joint joint="elbow" coef="1"/></fixed></tendon>',
            "tendon 'cord'",
        ),
        ('<option density="1000"/>', "fluid forces"),
    ],
)
def test_unsupported_elements_are_named(extra, message):
    with pytest.warns(models.ModelWarning, match=message):
        models.load_model_from_string(ROBOT % extra)


def test_keyframes_and_default_configuration():
    q = "1 2 3 1 0 0 0 0.1 0.2 1 0 0 0"
    model = models.load_model_from_string(
        ROBOT % f'<keyframe><key name="home" qpos="{q}"/><key qpos="{q}"/></keyframe>'
    )
    assert list(model.keyframes) == ["home", "keyframe1"]
    np.testing.assert_array_equal(model.keyframes["home"], [float(x) for x in q.split()])
    np.testing.assert_array_equal(model.q_default[:3], [0, 0, 1])


def test_fixing_and_freeing_the_base():
    free = models.load_model_from_string(ROBOT % "")
    fixed = models.load_model_from_string(ROBOT % "", floating_base=False)
    assert (free.nq, fixed.nq) == (13, 6)
    again = models.load_model_from_string((ROBOT % "").replace('<freejoint name="root"/>', ""), floating_base=True)
    assert again.topology.joints[0].kind == "free"
    np.testing.assert_allclose(again.q_default, free.q_default)
    place = jax.jit(kinematics)
    low = np.asarray(place(free.to_device(), free.q_default).position)[-1]
    np.testing.assert_allclose(np.asarray(place(fixed.to_device(), fixed.q_default).position)[-1], low, atol=1e-15)
    with pytest.raises(ModelError, match="no body is fixed to the world"):
        models.load_model_from_string(
            "<mujoco><worldbody><body name='cart'><joint/><geom size='1'/></body></worldbody></mujoco>",
            floating_base=True,
        )


def test_disabled_features_are_off():
    flags = '<option><flag gravity="disable" contact="disable"/></option>'
    with pytest.warns(models.ModelWarning, match="contact is disabled"):
        model = models.load_model_from_string(ROBOT % flags)
    assert not model.gravity.any() and not model.topology.pairs


def test_same_text_same_topology():
    one, two = (models.load_model_from_string(ROBOT % "") for _ in range(2))
    assert one.topology == two.topology and hash(one.topology) == hash(two.topology)
