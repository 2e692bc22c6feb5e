"""Where the bodies and shapes of a model are at one configuration, in NumPy.

The readers need this once for each model, before anything is compiled. `trajopt.dynamics.rigid_body.kinematics` is
the function to differentiate and to batch; the tests compare the two.
"""

import numpy as np
from jaxtyping import Float
from scipy.spatial.transform import Rotation

from trajopt.dynamics.model import WORLD, Model, NodeType
from trajopt.models.descriptions import quaternion_to_matrix


def tree_configuration(model: Model, q: Float[np.ndarray, " nq"]) -> Float[np.ndarray, " nq_tree"]:
    """The coordinates of all joints, those of mimic joints included, for the coordinates `q` of the user."""
    top = model.topology
    full = np.zeros(top.nq_tree)
    full[top.user_coordinates] = np.asarray(q, float)
    users = np.asarray(q, float)[np.maximum(top.scalar_q_of_dof, 0)] if top.nv else np.zeros(0)
    for k, mimic in enumerate(top.mimics):
        node = int(top.dof_node[mimic.dof])
        full[top.q_starts[node]] = model.mimic_multiplier[k] * users[mimic.source] + model.mimic_offset[k]
    return full


def node_placements(
    model: Model, q_tree: Float[np.ndarray, " nq_tree"]
) -> tuple[Float[np.ndarray, "rows 3 3"], Float[np.ndarray, "rows 3"]]:
    """Rotations and positions (m) of all nodes in the world; the last row is the world's, so that WORLD indexes it."""
    top = model.topology
    rotation, position = np.tile(np.eye(3), (top.n_nodes + 1, 1, 1)), np.zeros((top.n_nodes + 1, 3))
    for i, (parent, kind, start) in enumerate(zip(top.parents, top.node_types, top.q_starts, strict=True)):
        parent = WORLD if parent < 0 else parent
        r = rotation[parent] @ model.placement_rotation[i]
        p = position[parent] + rotation[parent] @ model.placement_position[i]
        axis, value = np.asarray(model.axis[i]), q_tree[start] - model.reference[i]
        if kind is NodeType.REVOLUTE:
            r = r @ Rotation.from_rotvec(axis * float(value)).as_matrix()
        elif kind is NodeType.PRISMATIC:
            p = p + r @ axis * value
        elif kind is NodeType.BALL:
            r = r @ quaternion_to_matrix(q_tree[start : start + 4])
        else:
            p = p + r @ q_tree[start : start + 3]
        rotation[i], position[i] = r, p
    return rotation, position


def shape_placements(
    model: Model, q: Float[np.ndarray, " nq"]
) -> tuple[Float[np.ndarray, "ns 3 3"], Float[np.ndarray, "ns 3"]]:
    """Rotations and positions (m) of all shapes in the world."""
    rotation, position = node_placements(model, tree_configuration(model, q))
    nodes = np.array([shape.node for shape in model.topology.shapes], int)
    turned = rotation[nodes] @ model.shape_rotation
    return turned, position[nodes] + np.einsum("sij,sj->si", rotation[nodes], model.shape_position)

