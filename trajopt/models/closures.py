"""Closing the loops of a model when it is loaded: the default configuration is moved to where its equality constraints hold.

Gauss-Newton with steps of least norm in tangent coordinates, in NumPy, so that loading a model compiles nothing; the errors are
those of `dynamics.contact.closures`, their Jacobian is by central differences.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.spatial.transform import Rotation

from trajopt.dynamics.contact.closures import KINDS
from trajopt.dynamics.model import WORLD, Model
from trajopt.errors import ModelError
from trajopt.models.placements import node_placements, tree_configuration

CLOSED = 1e-10  # m and rad: errors below are rounding of placements of some metres
ITERATIONS = 100
_STEP = 1e-6  # of the differences, whose error of 1e-10 only slows the last iterations
_LONGEST = 0.5  # rad and m, of an iteration: far from closed, a straight step says little
_RANK = 1e-7  # singular values of the Jacobian below this share of the largest are left out of a step
_NOTED = 1e-6  # displacement of the default configuration from which it is worth a warning


def closed(model: Model, source: str, warn: Callable[[str], None]) -> Model:
    """The model with a default configuration in which its equality constraints hold.

    Raises `ModelError` with the names and errors of those that no configuration near the default meets.
    """
    if not model.topology.constrained:
        return model
    q = start = np.array(model.q_default, float)
    error = closure_error(model, q)
    for _ in range(ITERATIONS):
        if np.abs(error).max() <= CLOSED:
            break
        J = _jacobian(model, q)
        step = -np.linalg.pinv(J, rcond=_RANK) @ error
        q = _moved(model, q, step * min(1.0, _LONGEST / max(np.abs(step).max(), 1e-300)))
        error = closure_error(model, q)
    if np.abs(error).max() > CLOSED:
        worst = ", ".join(f"'{name}' by {size:.3g}" for name, size in _by_name(model, error).items() if size > CLOSED)
        raise ModelError(
            f"{source}: no configuration near the default closes the loops: off are {worst} (m, rad); correct the anchors or "
            "lengths, or give the joints another reference"
        )
    if np.abs(q - start).max() > _NOTED:
        warn(f"the default configuration does not close the loops; it is moved by up to {np.abs(q - start).max():.3g}")
    return model.replace(q_default=q) if q is not start else model


def closure_error(model: Model, q: Float[np.ndarray, " nq"]) -> Float[np.ndarray, " k"]:
    """The errors of the equality constraints at q, as `dynamics.contact.closures.closure_rows` gives them."""
    top = model.topology
    rotation, position = node_placements(model, tree_configuration(model, q))
    errors = []
    for i, closure in enumerate(top.closures):
        nodes = [WORLD if node < 0 else node for node in (closure.node1, closure.node2)]
        axes = [rotation[n] @ model.closure_rotation[i, k] for k, n in enumerate(nodes)]
        points = [position[n] + rotation[n] @ model.closure_position[i, k] for k, n in enumerate(nodes)]
        R = axes[1].T @ axes[0]
        vee = 0.5 * np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
        rows = np.concatenate([axes[1].T @ (points[0] - points[1]), vee, R[:2, 2]])
        errors.append(rows[list(KINDS[closure.kind])])
    scalar = top.scalar_q_of_dof
    values = np.where(scalar >= 0, q[np.maximum(scalar, 0)], 0.0) if top.nv else np.zeros(0)
    for i in range(len(top.couplings)):
        y, x = model.coupling_arms[i] @ values - model.coupling_reference[i]
        errors.append(np.array([y - np.polyval(model.coupling_polynomial[i, ::-1], x)]))
    return np.concatenate(errors)


def _by_name(model: Model, error: np.ndarray) -> dict[str, float]:
    top, sizes, at = model.topology, {}, 0
    for closure in top.closures:
        rows = len(KINDS[closure.kind])
        sizes[closure.name] = float(np.abs(error[at : at + rows]).max())
        at += rows
    return sizes | {name: float(abs(error[at + i])) for i, name in enumerate(top.couplings)}


def _jacobian(model: Model, q: np.ndarray) -> np.ndarray:
    columns = []
    for direction in np.eye(model.nv):
        ends = [closure_error(model, _moved(model, q, sign * _STEP * direction)) for sign in (1, -1)]
        columns.append((ends[0] - ends[1]) / (2 * _STEP))
    return np.stack(columns, 1)


def _moved(model: Model, q: np.ndarray, step: np.ndarray) -> np.ndarray:
    """q moved along the tangent vector `step`."""
    scalar, q = model.topology.scalar_q_of_dof, q.copy()
    q[scalar[scalar >= 0]] += step[scalar >= 0]
    for start, dof in model.topology.ball_starts:
        turned = Rotation.from_quat(q[start : start + 4], scalar_first=True) * Rotation.from_rotvec(step[dof : dof + 3])
        q[start : start + 4] = turned.as_quat(canonical=True, scalar_first=True)
    return q
