"""The bundled models: against the descriptions their figures come from, and against what their problems prescribe.

The fixtures in reference/ were compiled by MuJoCo from the published files (reference/make_reference.py). Mass matrices
are compared entry by entry relative to sqrt(M_ii M_jj), so that a wrist is judged as strictly as the base. The
agreement asked for is 1e-6; 1e-10 is used, since the figures are the same decimals and only round-off differs.
"""

import math
import pathlib
import re

import jax
import mujoco
import numpy as np
import pytest
from models.reference.make_reference import joint_figures, mass_matrices
from scipy.optimize import lsq_linear

from trajopt.dynamics.rigid_body import crba
from trajopt.models.registry import bundled_models, load_model, load_model_with_report

mass_matrix = jax.jit(crba.mass_matrix)

REFERENCE = pathlib.Path(__file__).parent / "reference"
BUNDLED = pathlib.Path(__file__).parents[2] / "trajopt" / "models" / "bundled"

SIZES = {  # name: (nq, nv, nu)
    "allegro-ball": (23, 22, 16),
    "anymal-c": (19, 18, 12),
    "arm-obstacle": (6, 6, 6),
    "atlas": (37, 36, 30),
    "cart-pole": (2, 2, 1),
    "catapult": (5, 5, 3),
    "cube": (7, 6, 0),
    "double-cart-pole": (3, 3, 1),
    "drone": (1, 1, 1),
    "go1": (19, 18, 12),
    "go1-climb": (19, 18, 12),
    "h1": (26, 25, 19),
    "half-cheetah": (9, 9, 6),
    "hopper": (6, 6, 3),
    "hopper-step": (6, 6, 3),
    "humanoid": (28, 27, 21),
    "jump-worm": (5, 5, 3),
    "panda": (9, 9, 9),
    "push-box": (5, 5, 2),
    "push-t": (5, 5, 2),
    "quadruped": (19, 18, 12),
    "spinner": (3, 3, 2),
    "two-arms": (19, 18, 12),
    "ur5": (6, 6, 6),
}
WITH_REFERENCE = ["go1", "h1", "atlas", "ur5", "half-cheetah", "hopper", "humanoid", "anymal-c", "panda"]
WITH_DRY_FRICTION = ["push-box", "push-t"]
STANDING = {  # name: (contacts at home, friction coefficient of the supporting shapes)
    "anymal-c": (4, 0.8),
    "atlas": (8, 0.8),
    "cube": (4, 0.4),
    "go1": (4, 0.8),
    "h1": (8, 0.8),
    "half-cheetah": (2, 0.4),
    "hopper": (2, 2.0),
    "humanoid": (8, 1.0),
    "quadruped": (4, 0.8),
}


def compile_bundled(name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(BUNDLED / f"{name}.xml"))


def at_home(model: mujoco.MjModel, margin: float = 0.0) -> mujoco.MjData:
    """MuJoCo's state at the home keyframe, with contacts reported up to a distance of `margin`."""
    model.geom_margin[:] = margin
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_forward(model, data)
    return data


def reference(name: str) -> dict[str, np.ndarray]:
    with np.load(REFERENCE / f"{name}.npz") as stored:
        return dict(stored)


def full_matrices(packed: np.ndarray, nv: int) -> np.ndarray:
    matrices = np.zeros((len(packed), nv, nv))
    rows, columns = np.tril_indices(nv)
    matrices[:, rows, columns] = packed
    matrices[:, columns, rows] = packed
    return matrices


def scaled_difference(matrices: np.ndarray, expected: np.ndarray) -> float:
    scale = np.sqrt(np.einsum("kii->ki", expected))
    return float(np.max(np.abs(matrices - expected) / (scale[:, :, None] * scale[:, None, :])))


def test_every_file_is_listed_here():
    assert bundled_models() == sorted(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_file_states_its_provenance(name):
    text = (BUNDLED / f"{name}.xml").read_text()
    assert text.startswith("<!--")
    comment = " ".join(text[: text.index("-->")].split())
    assert "Figures" in comment and "this project's own" in comment
    assert re.search(r"BSD-3-Clause|Apache-2\.0|MIT licence|no third-party licence applies", comment)
    assert "mesh" not in text and "texture" not in text and 'file="' not in text


@pytest.mark.parametrize("name", SIZES)
def test_loads_without_warnings(name, capfd):
    model = compile_bundled(name)
    data = at_home(model)
    mujoco.mj_step(model, data)
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err == ""
    assert data.warning.number.sum() == 0
    _, report = load_model_with_report(name)
    messages = report.warnings
    assert messages == ()


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_limits(name):
    model = load_model(name)
    assert (model.nq, model.nv, model.nu) == SIZES[name]
    assert model.name == name
    assert np.all(np.isfinite(model.control_upper)) and np.all(model.control_upper > 0)
    np.testing.assert_array_equal(model.control_lower, -model.control_upper)
    assert np.all(model.frictionloss == 0) == (name not in WITH_DRY_FRICTION)


@pytest.mark.parametrize("name", SIZES)
def test_home_is_a_valid_configuration(name):
    model = compile_bundled(name)
    home = model.key("home").qpos
    for joint in range(model.njnt):
        start = model.jnt_qposadr[joint]
        if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
            assert abs(np.linalg.norm(home[start + 3 : start + 7]) - 1.0) < 1e-12
        elif model.jnt_limited[joint]:
            assert model.jnt_range[joint, 0] <= home[start] <= model.jnt_range[joint, 1]
    np.testing.assert_array_equal(load_model(name).keyframes["home"], home)


# --- against the published descriptions -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_joints_match_the_reference(name):
    figures, expected = joint_figures(compile_bundled(name)), reference(name)
    np.testing.assert_array_equal(figures["joint_names"], expected["joint_names"])
    np.testing.assert_array_equal(figures["joint_types"], expected["joint_types"])
    for key in ("joint_ranges", "damping", "armature", "stiffness"):
        np.testing.assert_allclose(figures[key], expected[key], rtol=1e-12, atol=0)
    named = np.isfinite(expected["torque_limits"])  # panda's fingers share one tendon in the source
    assert named.sum() == (7 if name == "panda" else len(named) - 3 * (name in ("half-cheetah", "hopper")))
    np.testing.assert_allclose(figures["torque_limits"][named], expected["torque_limits"][named], rtol=1e-12)


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_mass_matches_the_reference(name):
    expected = reference(name)
    assert abs(compile_bundled(name).body_mass.sum() - expected["total_mass"]) < 1e-12
    # the Model holds what moves: a base fixed to the world is part of the world; the sum rounds within 1e-12
    assert abs(load_model(name).mass.sum() - expected["moving_mass"]) < 1e-12


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_mass_matrix_matches_the_reference(name):
    stored = reference(name)
    model = load_model(name)
    expected = full_matrices(stored["mass_matrix"], model.nv)
    assert len(expected) == 20
    assert scaled_difference(mass_matrices(compile_bundled(name), stored["qpos"]), expected) < 1e-10
    computed = jax.jit(jax.vmap(lambda q: mass_matrix(model, q)))(stored["qpos"])
    assert scaled_difference(np.asarray(computed), expected) < 1e-10


@pytest.mark.parametrize("name", [name for name in SIZES if name not in WITH_REFERENCE])
def test_mass_matrix_at_home_is_mujocos(name):
    model, compiled = load_model(name), compile_bundled(name)
    home = model.keyframes["home"]
    expected = mass_matrices(compiled, home[None])
    assert np.all(np.linalg.eigvalsh(expected) > 0)
    assert scaled_difference(np.asarray(mass_matrix(model, home))[None], expected) < 1e-12


# --- standing on the floor --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STANDING)
def test_home_touches_the_floor(name):
    model = compile_bundled(name)
    contacts = at_home(model, margin=1e-3).contact
    count, friction = STANDING[name]
    assert len(contacts.dist) == count
    assert np.max(np.abs(contacts.dist)) < 1e-9
    assert all(model.geom(g).name == "floor" for g in contacts.geom1)
    np.testing.assert_array_equal(contacts.friction[:, 0], friction)


@pytest.mark.parametrize("name", [*STANDING, "drone"])
def test_only_the_floor_collides(name):
    top, compiled = load_model(name).topology, compile_bundled(name)
    names = [shape.name for shape in top.shapes]
    bits = compiled.geom_contype | compiled.geom_conaffinity
    solid = np.sum(bits != 0)
    assert len(names) == compiled.ngeom and len(top.pairs) == solid - 1
    assert all("floor" in (names[a], names[b]) for a, b in top.pairs)


@pytest.mark.parametrize("name", ["cart-pole", "double-cart-pole", "go1", "h1"])
def test_every_body_is_drawn(name):
    top = load_model(name).topology
    shown = {shape.node for shape in top.shapes}
    assert all(joint.nodes[-1] in shown for joint in top.joints)


@pytest.mark.parametrize("name", [name for name in STANDING if name != "cube"])
def test_home_can_be_held(name):
    """Static equilibrium at home: bias = tau + J^T f with torques within their limits, forces within their cones.

    The cone is replaced by the four-sided pyramid inside it, so that a solution of the bounded least-squares problem
    with zero residual is a certificate.
    """
    model = compile_bundled(name)
    data = at_home(model, margin=1e-6)
    columns = []
    for contact in data.contact:
        jacobian = np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, jacobian, None, contact.pos, model.geom_bodyid[contact.geom2])
        slope = contact.friction[0] / math.sqrt(2.0)
        for tangent in ((slope, slope), (slope, -slope), (-slope, slope), (-slope, -slope)):
            columns.append(np.array([*tangent, 1.0]) @ jacobian)
    motors = np.zeros((model.nv, model.nu))
    joints = model.actuator_trnid[:, 0]
    limit = model.actuator_gear[:, 0] * model.actuator_ctrlrange[:, 1]
    motors[model.jnt_dofadr[joints], np.arange(model.nu)] = limit
    matrix = np.column_stack([np.array(columns).T, motors])
    bias = data.qfrc_bias - data.qfrc_passive
    lower = np.concatenate([np.zeros(len(columns)), -np.ones(model.nu)])
    upper = np.concatenate([np.full(len(columns), np.inf), np.ones(model.nu)])
    solution = lsq_linear(matrix, bias, bounds=(lower, upper), tol=1e-14, max_iter=500).x
    # well below the weight (100 to 1700 N); the torques stay within half of their limits
    assert np.max(np.abs(matrix @ solution - bias)) < 1e-6
    assert np.max(np.abs(solution[len(columns) :])) < 0.5


# --- the problems' own figures ----------------------------------------------------------------------------------------


def box(model: mujoco.MjModel, data: mujoco.MjData, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Centre and full edge lengths of a box."""
    geom = model.geom(name)
    assert geom.type[0] == mujoco.mjtGeom.mjGEOM_BOX
    return data.geom(name).xpos, 2 * geom.size


def test_cube():
    model = compile_bundled("cube")
    data = at_home(model)
    centre, edges = box(model, data, "cube")
    np.testing.assert_array_equal(edges, [0.2, 0.2, 0.2])
    np.testing.assert_array_equal(centre, [0, 0, 0.1])
    assert model.body("cube").mass[0] == 1.0
    np.testing.assert_allclose(model.body("cube").inertia, 0.2**2 / 6, rtol=1e-14)
    np.testing.assert_array_equal(load_model("cube").pair_friction, [0.4])


def test_drone():
    model = compile_bundled("drone")
    data = at_home(model, margin=1.0)
    assert model.body("drone").mass[0] == 0.1 and model.geom("drone").size[0] == 0.3
    assert data.contact.dist == pytest.approx([-1e-4], abs=1e-14)
    assert data.qvel == pytest.approx([-1e-4]) and data.geom("floor").xpos[2] == 0.5
    np.testing.assert_array_equal(load_model("drone").pair_friction, [0.0])
    np.testing.assert_array_equal(load_model("drone").control_upper, [10.0])


def test_push_t_turns_about_its_centre_of_mass():
    model = compile_bundled("push-t")
    data = at_home(model)
    np.testing.assert_allclose(data.body("t").xipos, 0.0, atol=1e-6)
    assert model.body("t").mass[0] == pytest.approx(0.5)
    middles, edges = zip(*(box(model, data, part) for part in ("bar", "stem")), strict=True)
    np.testing.assert_allclose(edges, [[0.16, 0.04, 0.04], [0.04, 0.12, 0.04]])
    assert middles[0][1] - middles[1][1] == pytest.approx(0.08)  # the stem begins where the bar ends
    # friction of 0.2 of the weight, and that at the mean distance of the footprint from the centre of mass
    x, y = np.meshgrid(np.linspace(-0.08, 0.08, 801), np.linspace(-0.12, 0.06, 901))
    inside = [np.all(np.abs(np.stack([x, y], -1) - m[:2]) <= e[:2] / 2, -1) for m, e in zip(middles, edges, strict=True)]
    distance = np.hypot(x, y)[inside[0] | inside[1]].mean()
    np.testing.assert_allclose(load_model("push-t").frictionloss[:3], [1.0, 1.0, distance], rtol=0.02)


def check_scene(name: str, robot: str, poses: np.ndarray) -> mujoco.MjModel:
    """That the model is the robot's with something beside it; the model."""
    model, alone = compile_bundled(name), compile_bundled(robot)
    np.testing.assert_array_equal(mass_matrices(model, poses), mass_matrices(alone, poses))
    figures, expected = joint_figures(model), joint_figures(alone)
    for key in expected:
        np.testing.assert_array_equal(figures[key], expected[key])
    for k in range(alone.ngeom):
        shape = alone.geom(k)
        np.testing.assert_array_equal(model.geom(shape.name).size, shape.size)
        np.testing.assert_array_equal(model.geom(shape.name).friction, shape.friction)
    np.testing.assert_array_equal(model.key("home").qpos, alone.key("home").qpos)
    return model


def test_hopper_step_is_the_hopper_before_a_step():
    model = check_scene("hopper-step", "hopper", np.random.default_rng(0).uniform(-0.5, 0.5, (5, 6)))
    centre, edges = box(model, at_home(model), "step")
    assert centre[0] - edges[0] / 2 == 0.5 and centre[2] + edges[2] / 2 == pytest.approx(0.1)


def test_go1_climb_is_go1_before_a_box():
    home = compile_bundled("go1").key("home").qpos
    model = check_scene("go1-climb", "go1", home + np.random.default_rng(0).uniform(-0.3, 0.3, (5, 1)) * (np.arange(19) >= 7))
    centre, edges = box(model, at_home(model), "box")
    assert centre[0] - edges[0] / 2 == pytest.approx(0.35) and centre[2] + edges[2] / 2 == pytest.approx(0.15)


def test_arm_obstacle_is_the_arm_beside_a_ball():
    model = check_scene("arm-obstacle", "ur5", np.random.default_rng(0).uniform(-1.0, 1.0, (5, 6)))
    assert model.geom("obstacle").size[0] == 0.1


def link_tips(base: np.ndarray, angles: list[float]) -> np.ndarray:
    """Ends of links of 0.25 m in the x-z plane; absolute angle a from the vertical, positive towards -x."""
    absolute = np.cumsum(angles)
    steps = 0.25 * np.stack([-np.sin(absolute), np.zeros(3), np.cos(absolute)], axis=1)
    return base + np.cumsum(steps, axis=0)


def check_chain(model: mujoco.MjModel, data: mujoco.MjData, base: np.ndarray, angles: list[float]) -> None:
    tips = link_tips(base, angles)
    starts = np.vstack([base, tips[:-1]])
    for i in range(3):
        centre, edges = box(model, data, f"link{i + 1}")
        np.testing.assert_allclose(centre, (starts[i] + tips[i]) / 2, atol=1e-14)
        np.testing.assert_allclose(edges, [0.05, 0.05, 0.25], rtol=1e-14)
        assert model.body(f"link{i + 1}").mass[0] == 1.0
    centre, edges = box(model, data, "cube")
    np.testing.assert_array_equal(edges, [0.1, 0.1, 0.1])
    assert model.body("cube").mass[0] == 1.0


def test_catapult():
    model = compile_bundled("catapult")
    data = at_home(model)
    check_chain(model, data, np.array([0.5, 0, -0.45]), [math.pi / 4, 0, math.pi / 4])
    np.testing.assert_array_equal(data.geom("cube").xpos, [0, 0, 0.1])
    centre, edges = box(model, data, "floor")
    np.testing.assert_allclose(centre, [1.2, 0, -0.7])
    np.testing.assert_allclose(edges[[0, 2]], [3.5, 0.25])
    loaded = load_model("catapult")
    np.testing.assert_allclose(loaded.lower, [-np.inf, -np.inf, 0, 0, 0])
    np.testing.assert_allclose(loaded.upper, [np.inf, np.inf, math.pi, math.pi, math.pi])
    np.testing.assert_array_equal(loaded.control_upper, [1000.0] * 3)
    np.testing.assert_array_equal(loaded.pair_friction, 1.0)
    names = [shape.name for shape in loaded.topology.shapes]
    pairs = {frozenset((names[a], names[b])) for a, b in loaded.topology.pairs}
    links = ["link1", "link2", "link3"]
    expected = {frozenset(("cube", other)) for other in [*links, "floor"]} | {frozenset((n, "floor")) for n in links}
    assert pairs == expected


def test_jump_worm():
    model = compile_bundled("jump-worm")
    data = at_home(model)
    check_chain(model, data, np.zeros(3), [math.pi / 2, math.pi / 2, math.pi / 4])
    np.testing.assert_array_equal(data.geom("cube").xpos, [0, 0, 0])
    centre, edges = box(model, data, "floor")
    assert centre[2] == -0.7
    np.testing.assert_allclose(edges[[0, 2]], [2.5, 0.25])
    loaded = load_model("jump-worm")
    np.testing.assert_array_equal(loaded.control_upper, [100.0] * 3)
    np.testing.assert_array_equal(loaded.pair_friction, 1.0)
    np.testing.assert_array_equal(loaded.actuation[:2], 0.0)
    names = [shape.name for shape in loaded.topology.shapes]
    assert len(loaded.topology.pairs) == 4
    assert all("floor" in (names[a], names[b]) for a, b in loaded.topology.pairs)
