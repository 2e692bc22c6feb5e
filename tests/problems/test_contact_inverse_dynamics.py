"""Contact inverse dynamics of Go1 and H1: poses, torques and forces, judged by MuJoCo's kinematics and a dense KKT solve."""

import importlib.resources

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from trajopt import problems, solvers
from trajopt.dynamics.rigid_body.crba import mass_matrix
from trajopt.dynamics.rigid_body.kinematics import centre_of_mass, frame_placement
from trajopt.errors import OptionError, UnknownNameError
from trajopt.models import load_model
from trajopt.problems.library import contact_inverse_dynamics as cid
from trajopt.problems.library.static_pose import certify, solve_static_pose

DT = 1e-3
CASES = {
    "go1-stand": ("go1", cid.GO1_STAND, cid.GO1_FEET),
    "go1-stand-payload": ("go1", cid.GO1_STAND, cid.GO1_FEET),
    "go1-handstand": ("go1", cid.GO1_HANDSTAND, cid.GO1_HANDS),
    "h1-pushup": ("h1", cid.H1_PUSHUP_POSE, cid.H1_PUSHUP),
}
names = pytest.mark.parametrize("name", CASES)


def mujoco_at_pose(name: str) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """MuJoCo's view of the case. The payload is a body of its own here, welded to the trunk by MuJoCo."""
    robot, q, _ = CASES[name]
    text = importlib.resources.files("trajopt.models").joinpath("bundled", f"{robot}.xml").read_text()
    if name == "go1-stand-payload":
        load = '<body pos="0 0 0.107"><geom type="box" size="0.05 0.05 0.05" mass="10" contype="0"/></body>'
        text = text.replace('<freejoint name="root"/>', '<freejoint name="root"/>' + load, 1)
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_forward(model, data)
    return model, data


def mujoco_supports(name: str, model, data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(distances from the floor, contact points, Jacobian (3 ns, nv) of the points) of the supporting spheres."""
    distances, points, rows = [], [], []
    for shape in CASES[name][2]:
        geom = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, shape)
        radius = model.geom_size[geom, 0]
        point = data.geom_xpos[geom] - [0, 0, radius]
        J = np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, J, None, point, model.geom_bodyid[geom])
        distances.append(data.geom_xpos[geom, 2] - radius)
        points.append(point)
        rows.append(J)
    return np.array(distances), np.array(points), np.concatenate(rows)


@pytest.fixture(scope="session")
def solved():
    """Solutions by problem name, computed once."""
    found = {}

    def get(name: str):
        if name not in found:
            problem = problems.get(name)
            found[name] = problem, solvers.solve(problem, solvers.GaussNewton(max_iterations=10))
        return found[name]

    return get


@names
def test_robot_stays_still_after_at_most_ten_iterations_from_zero_torque(solved, name):
    problem, solution = solved(name)
    assert np.all(problem.x0 == 0)
    assert solution.success, solution.message
    assert solution.iterations <= 10
    assert solution.residuals["velocity_over_dt"] < 1e-6
    assert np.abs(solution.trajectory["v"][-1]).max() < 1e-9


@names
def test_velocity_is_zero_by_an_independent_dense_solve(solved, name):
    """Balance of impulses with every support sticking, M and J from MuJoCo: v+ = 0 and the same forces, in the cones."""
    _, solution = solved(name)
    model, data = mujoco_at_pose(name)
    _, _, J = mujoco_supports(name, model, data)
    M = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, M)
    S = np.zeros((model.nv, model.nu))
    S[model.jnt_dofadr[model.actuator_trnid[:, 0]], np.arange(model.nu)] = model.actuator_gear[:, 0]
    n, m = model.nv, J.shape[0]
    K = np.block([[M, -J.T], [J, np.zeros((m, m))]])
    right = np.concatenate([DT * (S @ solution.x - data.qfrc_bias), np.zeros(m)])
    # Point supports on jointed legs: the rows of J are independent, K is regular.
    answer = np.linalg.solve(K, right)
    assert np.abs(K @ answer - right).max() < 1e-12
    assert np.abs(answer[:n]).max() / DT < 1e-6
    impulse = answer[n:].reshape(-1, 3)
    assert np.all(impulse[:, 2] > 0)
    assert np.all(np.hypot(impulse[:, 0], impulse[:, 1]) < 0.999 * 0.8 * impulse[:, 2])
    ours = solution.trajectory["impulse"][0]
    ours = ours[cid.carries(ours)]
    # Order of the supports differs between the lists; forces are compared as sets, tangents x and y being world axes.
    order = lambda forces: forces[np.lexsort(np.round(forces, 7).T)]  # noqa: E731
    np.testing.assert_allclose(order(ours), order(impulse), atol=1e-8)


@names
def test_forces_carry_the_weight_within_cones_and_torque_limits(solved, name):
    problem, solution = solved(name)
    total = solution.trajectory["impulse"][0].sum(0) / DT
    np.testing.assert_allclose(total, [0, 0, 9.81 * problem.display.model.total_mass], atol=1e-5)
    assert solution.residuals["cone_use"] < 0.6
    assert np.all(np.abs(solution.x) <= problem.display.model.control_upper)
    assert solution.residuals["torque_use"] < 0.3
    assert solution.residuals["dropped_contacts"] == 0


@names
def test_jacobian_against_central_differences(solved, name):
    """At torques off the solution, along random directions. Error of the quotient: h^2 and eps |r| / h, with h = 1e-3."""
    problem, solution = solved(name)
    random = np.random.default_rng(0)
    u = solution.x + 1e-2 * problem.scale * random.normal(size=solution.x.size)
    oracle = problem.compile("implicit")
    J = oracle.linearize(u)[1]
    for _ in range(3):
        d = problem.scale * random.normal(size=u.size)
        step = 1e-3
        plus, minus = oracle.residual(u + step * d), oracle.residual(u - step * d)
        quotient = (plus - minus) / (2 * step)
        np.testing.assert_allclose(J @ d, quotient, atol=1e-7 * np.abs(quotient).max())


@names
def test_pose_is_static_by_mujoco(name):
    model, data = mujoco_at_pose(name)
    distance, points, _ = mujoco_supports(name, model, data)
    assert np.abs(distance).max() < 1e-12
    com = data.subtree_com[1]
    if len(points) == 2:
        along = points[1] - points[0]
        normal = np.array([-along[1], along[0]]) / np.hypot(along[0], along[1])
        assert abs(normal @ (com - points[0])[:2]) < 1e-12


@names
def test_certificate_of_the_pose(solved, name):
    _, solution = solved(name)
    values = solution.residuals
    assert values["pose_support_distance"] < 1e-12
    assert values["pose_equilibrium"] < 1e-10
    assert values["pose_use"] < 0.3
    assert values["pose_clearance"] > 5e-3
    assert values["pose_limit_margin"] > 0.1
    if name == "go1-handstand":
        assert values["pose_com_offset"] < 1e-12
    else:
        assert values["pose_com_offset"] > 0.05


def test_handstand_is_upside_down():
    """Nose down, hind feet higher than the trunk, which is higher than the front feet."""
    model, data = mujoco_at_pose("go1-handstand")
    height = {n: data.geom(n).xpos[2] for n in ("FR_foot", "FL_foot", "RR_foot", "RL_foot", "trunk")}
    assert data.xmat[1].reshape(3, 3)[2, 0] < -0.9
    assert min(height["RR_foot"], height["RL_foot"]) > height["trunk"] > 0.3


def test_pushup_is_straight_and_prone():
    model, data = mujoco_at_pose("h1-pushup")
    forward = data.xmat[1].reshape(3, 3)[:, 0]
    assert forward[2] < -0.9
    for joint in ("left_hip_pitch", "left_knee", "left_hip_roll", "torso"):
        assert abs(data.joint(joint).qpos[0]) < 1e-3


def handstand_reference() -> np.ndarray:
    half = np.deg2rad(75) / 2
    legs = [0, -0.5, -1.2, 0, -0.5, -1.2, 0, 1.2, -1.5, 0, 1.2, -1.5]
    return np.array([0, 0, 0.5, np.cos(half), 0, np.sin(half), 0, *legs])


def pushup_reference() -> np.ndarray:
    model, pitch = load_model("h1"), np.deg2rad(70)
    q = np.zeros(model.nq)
    q[:7] = [0, 0, 0.4, np.cos(pitch / 2), 0, np.sin(pitch / 2), 0]
    for side, turn in (("left", 0.1), ("right", -0.1)):
        for joint, value in (("shoulder_pitch", -pitch), ("elbow", 1.55), ("hip_yaw", turn)):
            q[model.topology.joint(f"{side}_{joint}").q_start] = value
    return q


@pytest.mark.parametrize(
    "name, reference", [("go1-handstand", handstand_reference), ("h1-pushup", pushup_reference)], ids=["go1", "h1"]
)
def test_stored_pose_is_what_the_pose_solver_finds(name, reference):
    robot, stored, supports = CASES[name]
    q = solve_static_pose(load_model(robot), reference(), supports)
    np.testing.assert_allclose(q, stored, atol=1e-9)


def test_certificate_refuses_a_pose_that_cannot_stand():
    """Hind legs moved by 0.05 rad: the centre of mass leaves the line of the two feet and no forces balance the weight."""
    q = np.array(cid.GO1_HANDSTAND)
    q[[14, 17]] += 0.05
    found = certify(load_model("go1"), q, cid.GO1_HANDS)
    assert found.com_offset > 1e-4
    assert found.equilibrium > 1e-3


def test_a_support_on_a_line_has_no_inside():
    """The soles of an H1 on its face, seen from above: level with each other, 56 mm behind the ankles, which pitch turned."""
    model = load_model("h1")
    q = np.array(model.keyframes["home"])
    q[3:7] = np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0
    ankle, middle = frame_placement(model, q, "left_ankle_link")[1], centre_of_mass(model, q)
    soles = [f"{side}_{point}" for side in ("left", "right") for point in ("heel_left", "heel_right", "toe_left", "toe_right")]
    assert certify(model, q, soles).com_offset == pytest.approx(-abs(float(middle[0] - ankle[0]) + 0.056), abs=1e-9)


def test_payload_adds_the_inertia_of_a_body_on_the_trunk():
    model, data = mujoco_at_pose("go1-stand-payload")
    M = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, M)
    loaded = cid.with_payload(load_model("go1"), 10.0).to_device()
    ours = np.asarray(mass_matrix(loaded, jnp.asarray(cid.GO1_STAND)))
    np.testing.assert_allclose(ours, M, atol=1e-10 * np.abs(M).max())


def test_bad_input_is_named():
    model = load_model("go1")
    with pytest.raises(OptionError, match="payload is -1"):
        problems.get("go1-stand-payload", payload=-1.0)
    lifted = np.array(cid.GO1_STAND)
    lifted[2] += 1e-3
    with pytest.raises(OptionError, match="from the floor"):
        cid.contact_inverse_dynamics("lifted", model, lifted, cid.GO1_FEET)
    with pytest.raises(UnknownNameError, match="FR_fot"):
        certify(model, np.array(cid.GO1_STAND), ("FR_fot",))
    upright = np.array(cid.GO1_STAND)
    upright[2] += 5.0
    upright[7:] = 0.0
    with pytest.raises(OptionError, match="limit|floor"):
        solve_static_pose(model, upright, cid.GO1_FEET)
