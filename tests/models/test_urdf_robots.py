"""The URDF reader against Pinocchio's on published robots."""

import jax
import numpy as np
import pinocchio as pin
import pytest
from published import robot_file

from trajopt import models
from trajopt.dynamics.rigid_body.crba import crba
from trajopt.dynamics.rigid_body.kinematics import expand_q, kinematics

ROBOTS = (
    "a1_description/urdf/a1.urdf",
    "anymal_b_simple_description/robots/anymal-kinova.urdf",
    "allegro_hand_description/urdf/allegro_left_hand.urdf",
    "baxter_description/urdf/baxter.urdf",
    "go2_description/urdf/go2.urdf",
    "human_description/robots/human.urdf",
    "icub_description/robots/icub_reduced.urdf",
    "panda_description/urdf/panda.urdf",
    "pr2_description/urdf/pr2.urdf",
    "talos_data/robots/talos_full_v2.urdf",
    "ur_description/urdf/ur5_robot.urdf",
    "xarm_description/urdf/xarm7.urdf",
)


def nodes_of(model) -> dict[str, tuple[int, ...]]:
    """Nodes of every joint of the file by its name, followers included."""
    top = model.topology
    nodes = {joint.name: joint.nodes for joint in top.joints}
    return nodes | {mimic.name: (int(top.dof_node[mimic.dof]),) for mimic in top.mimics}


@jax.jit
def placements_and_inertia(model, q):
    return expand_q(model, q), kinematics(model, q), crba(model, q)


@pytest.mark.parametrize("robot", ROBOTS)
def test_published_robots_match_pinocchio(robot):
    """Inertias in the joints' frames, after fusing fixed links; placements of links and the mass matrix at a random pose."""
    model, _ = models.load_model_with_report(str(robot_file(robot)))
    reference = pin.buildModelFromUrdf(str(robot_file(robot)))  # mimic joints are independent joints there
    data, top, node_of = reference.createData(), model.topology, nodes_of(model)
    assert len(top.joints) + len(top.mimics) == reference.njoints - 1
    masses = [inertia.mass for inertia in reference.inertias[1:]]
    np.testing.assert_allclose(model.mass.sum(), sum(masses), rtol=1e-13)
    for j in range(1, reference.njoints):
        theirs, i = reference.inertias[j], node_of[reference.names[j]][-1]
        scale = max(theirs.mass, 1e-12)
        np.testing.assert_allclose(model.mass[i], theirs.mass, rtol=1e-13)
        np.testing.assert_allclose(model.com[i], theirs.lever, atol=1e-13)
        np.testing.assert_allclose(model.inertia[i], theirs.inertia, atol=1e-13 * scale + 1e-17)
    rng = np.random.default_rng(0)
    device = model.to_device()
    q = model.q_default + rng.uniform(-1, 1, model.nq)
    tree_q, kin, M = jax.tree.map(np.asarray, placements_and_inertia(device, q))
    their_q, columns = pin.neutral(reference), np.zeros((reference.nv, top.nv_tree))
    for j in range(1, reference.njoints):
        nodes, joint = node_of[reference.names[j]], reference.joints[j]
        value = np.concatenate([tree_q[top.q_starts[i] : top.q_starts[i] + 1] for i in nodes])
        if joint.nq == 2:
            value = np.array([np.cos(value[0]), np.sin(value[0])])
        elif joint.nq == 4 and joint.nv == 3:
            value = np.array([value[0], value[1], np.cos(value[2]), np.sin(value[2])])
            angle = tree_q[top.q_starts[nodes[2]]]  # the planar joint's linear velocity is in the moving frame there
            turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
            columns[joint.idx_v : joint.idx_v + 2, top.v_starts[nodes[0]] : top.v_starts[nodes[0]] + 2] = turn
            columns[joint.idx_v + 2, top.v_starts[nodes[2]]] = 1
        their_q[joint.idx_q : joint.idx_q + joint.nq] = value
        if joint.nv == 1:
            columns[joint.idx_v, top.v_starts[nodes[0]]] = 1

    pin.framesForwardKinematics(reference, data, their_q)
    for k, frame in enumerate(top.frames):
        if frame.node < 0:
            rotation, position = model.frame_rotation[k], model.frame_position[k]
        else:
            rotation = kin.rotation[frame.node] @ model.frame_rotation[k]
            position = kin.position[frame.node] + kin.rotation[frame.node] @ model.frame_position[k]
        theirs = data.oMf[reference.getFrameId(frame.name, pin.FrameType.BODY)]
        np.testing.assert_allclose(rotation, theirs.rotation, atol=1e-13)
        np.testing.assert_allclose(position, theirs.translation, atol=1e-13)

    transform = columns if not top.mimics else columns @ np.asarray(device.mimic_matrix())
    full = pin.crba(reference, data, their_q)
    full = np.triu(full) + np.triu(full, 1).T
    expected = transform.T @ full @ transform
    np.testing.assert_allclose(M, expected, atol=1e-12 * np.abs(expected).max())
