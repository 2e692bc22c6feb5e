"""Which shapes may touch, with which friction and restitution.

The rules are MuJoCo's: no pairs inside one moving body or between parts of the fixed world; none between a body and the
one that carries it (the fixed world excepted); contact bits; excluded body pairs. Explicit pairs bypass every filter.
In a pair the second shape is the plane or the height field, else the one fixed to the world, if there is one.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from trajopt.dynamics.model import ShapeType
from trajopt.errors import ModelError
from trajopt.models.descriptions import PairDescription, ShapeDescription
from trajopt.models.limits import PAIRS, refuse
from trajopt.names import closest

_SCENERY = (ShapeType.PLANE, ShapeType.HEIGHTFIELD)


@dataclasses.dataclass
class PlacedShape:
    """A shape, its body (None: the world), its moving group (0: the world), that group's parent, its tree, its robot."""

    shape: ShapeDescription
    body: str | None
    group: int
    parent_group: int
    tree: str | None
    robot: str | None = None


@dataclasses.dataclass(frozen=True)
class PairFilters:
    """What keeps shapes from touching: pairs of bodies (None: the world), neighbours in a tree, links of one robot.

    `parent`: no pairs between a body and the moving one that carries it; `world_parent`: nor with the part of its
    tree that is fixed to the world; `within_robots` False: none between links of one robot, explicit pairs included.
    """

    excludes: set[frozenset[str | None]]
    parent: bool = True
    world_parent: bool = True
    within_robots: bool = True


def contact_pairs(
    shapes: list[PlacedShape],
    explicit: list[PairDescription],
    filters: PairFilters,
    source: str,
) -> tuple[tuple[tuple[int, int], ...], Float[np.ndarray, " np"], Float[np.ndarray, " np"]]:
    """Index pairs of shapes, friction and restitution of each."""
    index = {placed.shape.name: i for i, placed in enumerate(shapes)}
    chosen: dict[tuple[int, int], tuple[float, float]] = {}
    for pair in explicit:
        for name in (pair.shape1, pair.shape2):
            if name not in index:
                raise ModelError(f"{source}: a contact pair names the unknown shape '{name}'{closest(name, index)}")
        one, other = shapes[index[pair.shape1]], shapes[index[pair.shape2]]
        if not filters.within_robots and one.robot is not None and one.robot == other.robot:
            continue
        key = _ordered(shapes, index[pair.shape1], index[pair.shape2])
        chosen[key] = (pair.friction, pair.restitution)
    for i, partners in enumerate(_partners(shapes, filters)):
        for j in partners:
            one, other, key = shapes[i], shapes[j], _ordered(shapes, i, j)
            if key in chosen or frozenset((one.body, other.body)) in filters.excludes:
                continue
            chosen[key] = _mix(one.shape, other.shape)
        if len(chosen) > PAIRS:
            remedy = "let fewer shapes collide (contype, conaffinity, exclude)"
            refuse(source, len(chosen), PAIRS, "contact pairs and more", remedy)
    pairs = sorted(chosen)
    friction = np.array([chosen[pair][0] for pair in pairs], float)
    restitution = np.array([chosen[pair][1] for pair in pairs], float)
    return tuple(pairs), friction, restitution


def _partners(shapes: list[PlacedShape], filters: PairFilters) -> Iterator[list[int]]:
    """For every shape the later ones that it may touch, body pairs that are excluded included."""

    def numbered(keys: list[str | None]) -> np.ndarray:
        """One number a key, and a number of its own for every None."""
        index: dict[str | None, int] = {}
        return np.array(
            [-1 - k if key is None else index.setdefault(key, len(index)) for k, key in enumerate(keys)], int
        )

    numbers = [(s.shape.contype, s.shape.conaffinity, s.group, s.parent_group) for s in shapes]
    contype, conaffinity, group, parent = np.array(numbers, int).reshape(-1, 4).T
    scenery = np.array([s.shape.kind in _SCENERY for s in shapes], bool)
    tree, robot = numbered([s.tree for s in shapes]), numbered([s.robot for s in shapes])
    for i in range(len(shapes)):
        rest = slice(i + 1, None)
        touching = (contype[i] & conaffinity[rest] | contype[rest] & conaffinity[i]) != 0
        touching &= (group[rest] != group[i]) & ~(scenery[i] & scenery[rest])
        if not filters.within_robots:
            touching &= robot[rest] != robot[i]
        adjacent = (group[i] == parent[rest]) | (group[rest] == parent[i])
        moving = (group[i] != 0) & (group[rest] != 0)
        if filters.parent:
            touching &= ~(adjacent & moving)
        if filters.world_parent:
            touching &= ~(adjacent & ~moving & (tree[rest] == tree[i]))
        yield (i + 1 + np.flatnonzero(touching)).tolist()


def _ordered(shapes: list[PlacedShape], i: int, j: int) -> tuple[int, int]:
    """Plane or height field second; else the world's shape second; else in the order of the shapes."""

    def rank(k: int) -> tuple[bool, bool, int]:
        return (shapes[k].shape.kind in _SCENERY, shapes[k].group == 0, k)

    return (i, j) if rank(i) <= rank(j) else (j, i)


def _mix(a: ShapeDescription, b: ShapeDescription) -> tuple[float, float]:
    if a.priority != b.priority:
        chief = a if a.priority > b.priority else b
        return chief.friction, chief.restitution
    return max(a.friction, b.friction), max(a.restitution, b.restitution)
