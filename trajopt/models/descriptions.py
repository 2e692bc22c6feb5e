"""What a model file says, before it becomes a `Model`: bodies, joints, shapes, actuators, free of any file format.

Frames: a body's `rotation`, `position` place its frame in its parent body's frame when every joint is at its
`reference`; everything a body carries (joint axes and anchors, centre of mass, shapes, frames) is given in the body's
frame. SI units, radians.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial.transform import Rotation

from trajopt.dynamics.model import ShapeType

JOINT_NQ = {"revolute": 1, "prismatic": 1, "ball": 4, "free": 7, "planar": 3}
JOINT_NV = {"revolute": 1, "prismatic": 1, "ball": 3, "free": 6, "planar": 3}
DEFAULT_FRICTION = 1.0


def _identity() -> Any:
    return dataclasses.field(default_factory=lambda: np.eye(3))


def _origin() -> Any:
    return dataclasses.field(default_factory=lambda: np.zeros(3))


@dataclasses.dataclass
class Mimic:
    """A joint's coordinate follows another's: q = multiplier * q_source + offset."""

    source: str
    multiplier: float = 1.0
    offset: float = 0.0


@dataclasses.dataclass
class JointDescription:
    """One joint of a body; a body with several has them composed in order, the first next to the parent.

    `kind`: revolute, prismatic, ball, free or planar. `axis` (unit; the plane's normal for planar) and `anchor` are in
    the body's frame. `armature`, `damping`, `frictionloss`, `stiffness`: a number, or one per DoF. `effort`: largest
    force or torque, used when the file names no actuators. `force_range`: of all actuators together. `initial`: default
    coordinates, else `reference`.
    """

    name: str
    kind: str
    axis: np.ndarray = dataclasses.field(default_factory=lambda: np.array([0.0, 0.0, 1.0]))
    anchor: np.ndarray = _origin()
    reference: float = 0.0
    lower: float = -np.inf
    upper: float = np.inf
    armature: float | np.ndarray = 0.0
    damping: float | np.ndarray = 0.0
    frictionloss: float | np.ndarray = 0.0
    stiffness: float | np.ndarray = 0.0
    spring_reference: float = 0.0
    effort: float = np.inf
    force_range: tuple[float, float] = (-np.inf, np.inf)
    mimic: Mimic | None = None
    initial: np.ndarray | None = None

    @property
    def nq(self) -> int:
        return JOINT_NQ[self.kind]

    @property
    def nv(self) -> int:
        return JOINT_NV[self.kind]


@dataclasses.dataclass
class ShapeDescription:
    """A collision shape; `size` as in `ShapeType`; `vertices` for meshes, height fields and point sets.

    Two shapes collide if `contype` of one shares a bit with `conaffinity` of the other; with both 0 a shape is there to
    be drawn only. Friction and restitution of a pair are those of the shape with the higher `priority`, and the larger ones of
    the two on a tie.
    """

    name: str
    kind: ShapeType
    size: np.ndarray
    rotation: np.ndarray = _identity()
    position: np.ndarray = _origin()
    vertices: np.ndarray | None = None
    friction: float = DEFAULT_FRICTION
    restitution: float = 0.0
    priority: int = 0
    contype: int = 1
    conaffinity: int = 1


@dataclasses.dataclass
class FrameDescription:
    """A named frame on a body."""

    name: str
    rotation: np.ndarray = _identity()
    position: np.ndarray = _origin()


@dataclasses.dataclass
class BodyDescription:
    """A rigid body. `parent` None: the world. No joints: fixed to its parent. `inertia`: about `com`, body axes.

    `robot`: what it is a part of, for pairs of links of one robot; None: its tree.
    """

    name: str
    parent: str | None = None
    rotation: np.ndarray = _identity()
    position: np.ndarray = _origin()
    mass: float = 0.0
    com: np.ndarray = _origin()
    inertia: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((3, 3)))
    joints: list[JointDescription] = dataclasses.field(default_factory=list)
    shapes: list[ShapeDescription] = dataclasses.field(default_factory=list)
    frames: list[FrameDescription] = dataclasses.field(default_factory=list)
    robot: str | None = None


@dataclasses.dataclass
class ActuatorDescription:
    """Generalised forces `gears[joint] * f` (one number per DoF of the joint), lower <= u <= upper.

    f = (g_0 + g_1 l + g_2 l') u + b_0 + b_1 l + b_2 l', within `force`, with g `gain`, b `bias`, and l the sum of gears times
    coordinates of hinges and slides; by default a motor, f = u.
    """

    name: str
    gears: dict[str, np.ndarray]
    lower: float = -np.inf
    upper: float = np.inf
    gain: tuple[float, float, float] = (1.0, 0.0, 0.0)
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)
    force: tuple[float, float] = (-np.inf, np.inf)

    @property
    def plain(self) -> bool:
        """Whether it is a motor without a force range."""
        return (self.gain, self.bias, self.force) == ((1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (-np.inf, np.inf))


@dataclasses.dataclass
class ClosureDescription:
    """Frame 1 (rotation, position) of body 1 tied to frame 2 of body 2, None being the world. kind: connect (origins), weld,
    hinge or slide (about or along the frames' third axis)."""

    name: str
    kind: str
    body1: str | None
    body2: str | None
    frame1: tuple[np.ndarray, np.ndarray]
    frame2: tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass
class CouplingDescription:
    """y - y_0 = p(x - x_0), y and x being sums of factor times coordinate over the joints `left` and `right`; `reference`: y_0
    and x_0; `polynomial`: the five coefficients of p in rising powers."""

    name: str
    left: dict[str, float]
    right: dict[str, float]
    reference: tuple[float, float]
    polynomial: tuple[float, ...]


@dataclasses.dataclass
class PairDescription:
    """An explicit contact pair of two shapes, by name; it is kept whatever the filters say."""

    shape1: str
    shape2: str
    friction: float
    restitution: float = 0.0


def skew_square(d: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3 3"]:
    """-[d]x [d]x = |d|^2 1 - d d^T, the parallel-axis term per unit mass."""
    return float(d @ d) * np.eye(3) - np.outer(d, d)


def quaternion_to_matrix(quaternion: Float[np.ndarray, "4"]) -> Float[np.ndarray, "3 3"]:
    """Rotation matrix of a quaternion (w x y z), which is normalised first."""
    return Rotation.from_quat(np.asarray(quaternion, float), scalar_first=True).as_matrix()


def matrix_to_quaternion(rotation: Float[np.ndarray, "3 3"]) -> Float[np.ndarray, "4"]:
    """Unit quaternion (w x y z), w >= 0, of a rotation matrix."""
    return Rotation.from_matrix(np.asarray(rotation, float)).as_quat(canonical=True, scalar_first=True)


def rpy_to_matrix(rpy: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3 3"]:
    """Rotation of fixed-axis roll, pitch, yaw: Rz(yaw) Ry(pitch) Rx(roll), as in URDF and SDF."""
    return Rotation.from_euler("xyz", np.asarray(rpy, float)).as_matrix()


def roll_pitch_yaw(quaternion: Float[np.ndarray, "k 4"]) -> Float[np.ndarray, "k 3"]:
    """Roll, pitch and yaw, rad, of quaternions w x y z: turned about x, then y, then z of the world."""
    w, x, y, z = (quaternion / np.maximum(np.linalg.norm(quaternion, axis=1, keepdims=True), 1e-300)).T
    roll = np.arctan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return np.stack([roll, np.arcsin(np.clip(2 * (w * y - z * x), -1, 1)), yaw], 1)


def perpendicular_axes(axis: Float[np.ndarray, "3"]) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """Two unit vectors that form a right-handed frame (t1, t2, axis); the x and y axes when `axis` is z."""
    helper = np.array([1.0, 0.0, 0.0]) if abs(axis[0]) < 0.9 else np.array([0.0, 1.0, 0.0])
    first = helper - axis * (axis @ helper)
    first /= np.linalg.norm(first)
    return first, np.cross(axis, first)


def frame_along(axis: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3 3"]:
    """A rotation whose third column is `axis`, a unit vector."""
    return np.stack([*perpendicular_axes(axis), axis], axis=1)
