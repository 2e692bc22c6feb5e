"""The pairs of shapes of a topology as the compiled core sees them: against planes, against each other, and those handed over."""

import dataclasses
import functools

from trajopt.dynamics.collision.narrowphase import SCENERY, pair_groups
from trajopt.dynamics.contact.laws import ContactLaw
from trajopt.dynamics.model import ShapeType, Topology

_WITH_PLANE = {
    ShapeType.SPHERE: 1, ShapeType.CAPSULE: 2, ShapeType.BOX: 4, ShapeType.CYLINDER: 4, ShapeType.ELLIPSOID: 1, ShapeType.MESH: 4,
}  # fmt: skip

_BALLS = {ShapeType.BOX: 8, ShapeType.CYLINDER: 0, ShapeType.ELLIPSOID: 0, ShapeType.MESH: 0}  # where not as many as contacts


@dataclasses.dataclass(frozen=True)
class PlanePair:
    """A shape against a plane as the core sees it: `balls` points or balls of it from `ball` on, or a curved shape or a mesh."""

    pair: int
    shape: int
    plane: int
    on_face: bool
    ball: int
    balls: int
    kept: int
    slot: int


@dataclasses.dataclass(frozen=True)
class ShapePair:
    """Two shapes that the core collides, in the model's order; swapped: the other way round in the contact function."""

    pair: int
    one: int
    two: int
    swapped: bool
    kept: int
    slot: int


@dataclasses.dataclass(frozen=True)
class CompiledPairs:
    """Pairs of a topology: against planes, in the order of their candidates; of two shapes that the core collides; the others,
    with their first candidates."""

    planes: tuple[int, ...]
    against: tuple[PlanePair, ...]
    balls: int
    between: tuple[ShapePair, ...]
    others: tuple[int, ...]
    slots: tuple[int, ...]
    candidates: int
    mesh_sizes: tuple[int, ...]

    @functools.cached_property
    def shapes_between(self) -> tuple[int, ...]:
        """The shapes of `between`, each once."""
        return tuple(sorted({shape for pair in self.between for shape in (pair.one, pair.two)}))

    def hulls(self, top: Topology) -> dict[int, tuple[tuple[int, int, int], ...]]:
        """Triangles of the meshes that the core collides, by the mesh's number in the model."""
        specs = (top.shapes[shape] for shape in (*self.shapes_between, *(x.shape for x in self.against)))
        return {spec.mesh: spec.triangles for spec in specs if spec.kind == ShapeType.MESH}


@functools.lru_cache(maxsize=128)
def _pairs(top: Topology, mesh_sizes: tuple[int, ...], every: bool) -> CompiledPairs:
    """every: the core looks at all pairs that it can collide; else JAX's broad phase chooses among them as the law asks."""
    planes: list[int] = []
    against: list[PlanePair] = []
    between: list[ShapePair] = []
    others: dict[int, int] = {}
    listed = balls = 0
    for group in pair_groups(top):
        many = mesh_sizes[group.mesh] if group.per_pair is None else group.per_pair
        kind = group.kinds[0]
        for place, pair in enumerate(group.pairs):
            slot = listed + many * place
            shape, plane = top.pairs[pair]
            if every and group.kinds[1] not in SCENERY:
                between.append(ShapePair(pair, shape, plane, group.swapped, many, slot))
                continue
            known = kind in _WITH_PLANE or kind == ShapeType.POINTS
            if group.swapped or group.kinds[1] != ShapeType.PLANE or not known:
                others[pair] = slot
                continue
            if plane not in planes:
                planes.append(plane)
            touching = _BALLS.get(kind, many)
            on_face = group.on_face or kind not in (ShapeType.SPHERE, ShapeType.ELLIPSOID)
            against.append(PlanePair(pair, shape, plane, on_face, balls, touching, many, slot))
            balls += touching
        listed += many * len(group.pairs)
    given = sorted(others)
    slots = tuple(others[pair] for pair in given)
    return CompiledPairs(tuple(planes), tuple(against), balls, tuple(between), tuple(given), slots, listed, mesh_sizes)


def pairs_under(top: Topology, mesh_sizes: tuple[int, ...], law: ContactLaw) -> CompiledPairs:
    """The pairs that the law lets touch: all, or none."""
    touching = top if law.acts else dataclasses.replace(top, pairs=())
    asked = law.pair_limit.pairs
    return _pairs(touching, mesh_sizes, asked is None or asked >= len(touching.pairs))
