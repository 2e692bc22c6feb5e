"""One step of a system through the compiled core: what a `Model` and its contact law are to it.

    compiled = compile_system(model, law, "semi-implicit")            # static: the topology, registered by its content
    parameters = pack_parameters(compiled, model, dt, kappa)          # one flat array, an argument of every call
    y = core_steps(compiled, parameters, q, v, tau)                   # the same function as the JAX path (compiled_step)

The core collides all shapes with planes, and all convex ones with each other; candidates of the others (height fields; all pairs
of shapes where the law limits them by `max_pairs`), and how they move, come from `collision.narrowphase` and are handed over
(`compiled_step.given_candidates`).

The numbers of shapes stand in the order of native/parameters.h.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt import native
from trajopt.dynamics.collision.convex.hulls import edges_of
from trajopt.dynamics.collision.features import BOX_CORNERS
from trajopt.dynamics.collision.narrowphase import pair_groups
from trajopt.dynamics.compiled_pairs import CompiledPairs, PlanePair, pairs_under
from trajopt.dynamics.contact.closures import KINDS as CLOSURE_ROWS
from trajopt.dynamics.contact.closures import closure_count
from trajopt.dynamics.contact.laws import ContactLaw
from trajopt.dynamics.contact.solve.solve import default_tolerance
from trajopt.dynamics.model import NODE_NV, Model, NodeType, ShapeSpec, ShapeType, Topology
from trajopt.dynamics.rigid_body.kinematics import mimic_coordinates
from trajopt.dynamics.rigid_body.spatial import rotate


def shape_numbers(top: Topology, law: ContactLaw, model: Model) -> list[Float[Array, "..."]]:
    """Planes, shapes against them, shapes against each other, vertices of meshes, and the balls of shapes against planes."""
    pairs = pairs_under(top, tuple(int(np.shape(mesh)[0]) for mesh in model.meshes), law)
    numbers = functools.partial(jnp.asarray, dtype=jax.dtypes.canonicalize_dtype(model.mass.dtype))
    rotation, position, size = (numbers(x) for x in (model.shape_rotation, model.shape_position, model.shape_size))
    planes, shapes = np.array(pairs.planes, int), np.array([x.shape for x in pairs.against], int)
    between = np.array(pairs.shapes_between, int)

    def flat(index, *parts):
        wide = [part.reshape(part.shape[0], int(np.prod(part.shape[1:])))[index] for part in parts]
        return jnp.concatenate(wide, 1).reshape(-1)

    balls = [_balls(x, top, rotation, position, size, model) for x in pairs.against if x.balls]
    boxes, spheres = size, jnp.zeros((len(top.shapes), 4), size.dtype)
    collided = sorted({*pairs.shapes_between, *(x.shape for x in pairs.against)})
    meshes = [k for k in collided if top.shapes[k].kind == ShapeType.MESH]
    if meshes:
        around = {mesh: _around(numbers(model.meshes[mesh])) for mesh in sorted({top.shapes[k].mesh for k in meshes})}
        half, ball = (jnp.stack(x) for x in zip(*(around[top.shapes[k].mesh] for k in meshes), strict=True))
        boxes, spheres = boxes.at[np.array(meshes)].set(half), spheres.at[np.array(meshes)].set(ball)
    vertices = [numbers(model.meshes[mesh]).T.reshape(-1) for mesh in pairs.hulls(top)]
    return [
        flat(planes, rotation, position), flat(shapes, position, rotation, size, spheres),
        flat(between, position, rotation, boxes, spheres), *vertices, *balls,
    ]  # fmt: skip


def _around(vertices: Float[Array, "n 3"]) -> tuple[Float[Array, "3"], Float[Array, "4"]]:
    """Half extents of a box around the vertices; centre of it and radius of a ball that holds them."""
    low, high = jnp.min(vertices, 0), jnp.max(vertices, 0)
    centre = (low + high) / 2
    away = jax.lax.stop_gradient(vertices - centre)
    return (high - low) / 2, jnp.append(centre, jnp.sqrt(jnp.max(jnp.sum(away * away, 1))))


def _balls(x: PlanePair, top: Topology, rotation, position, size, model: Model) -> Float[Array, " k"]:
    """Centres in the node's frame and radii of the balls of a shape that touch a plane first."""
    kind, R, p, extent = top.shapes[x.shape].kind, rotation[x.shape], position[x.shape], size[x.shape]
    numbers = functools.partial(jnp.asarray, dtype=position.dtype)
    zero = numbers(0.0)
    radius = extent[0] if kind in (ShapeType.SPHERE, ShapeType.CAPSULE) else zero
    if kind == ShapeType.SPHERE:
        local = numbers(np.zeros((1, 3)))
    elif kind == ShapeType.CAPSULE:
        local = numbers(np.array([[0, 0, 1.0], [0, 0, -1.0]])) * extent[1]
    elif kind == ShapeType.BOX:
        local = numbers(BOX_CORNERS) * extent
    else:
        local = numbers(model.meshes[top.shapes[x.shape].mesh])
    return jnp.concatenate([p + rotate(R, local), jnp.broadcast_to(radius, (x.balls, 1))], 1).reshape(-1)


INTEGRATORS = ("semi-implicit", "moreau", "euler", "rk4")  # as native/stepping.h numbers them; the last two take no impulses
PARAMETER_HEAD = 16  # numbers before those of the lanes, as in native/parameters.h


@dataclasses.dataclass(frozen=True)
class CompiledSystem:
    """What is static of a step through the core: hashable, equal for equal content.

    key: of the registered topology; contacts, limits, dry, equalities: rows reported, as the JAX path's;
    given: candidates handed over, from the pairs `given_pairs`, whose candidates begin at `given_slots` in the list of all.
    """

    key: int
    topology: Topology
    law: ContactLaw
    integrator: str
    contacts: int
    limits: int
    dry: int
    equalities: int
    given: int
    given_pairs: tuple[int, ...]
    given_slots: tuple[int, ...]
    report_size: int

    def __hash__(self) -> int:
        return hash((self.key, self.topology, self.law, self.integrator))

    @property
    def scheme(self) -> int:
        """The integrator's place in `INTEGRATORS`."""
        return INTEGRATORS.index(self.integrator)

    @property
    def report_layout(self) -> tuple[int, int, int]:
        """Contacts, limits, and rows of joint friction and equality constraints in the report of a step."""
        return self.contacts, self.limits, self.dry + self.equalities

    @property
    def reported(self) -> int:
        """Impulses in the report of a step."""
        return 3 * self.contacts + self.limits + self.dry + self.equalities


def compile_system(model: Model, law: ContactLaw, integrator: str) -> CompiledSystem:
    """Register the topology of the model under the law; what `reason_not_covered` names has to be kept out."""
    sizes = tuple(int(np.shape(mesh)[0]) for mesh in model.meshes)
    return _compiled(model.topology, sizes, law, integrator, law.contact_rows(model), law.limit_rows(model))


# --- the table of the topology ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=128)
def _compiled(
    top: Topology, mesh_sizes: tuple[int, ...], law: ContactLaw, integrator: str, contacts: int, limits: int
) -> CompiledSystem:
    pairs = pairs_under(top, mesh_sizes, law)
    given = _given_count(top, mesh_sizes, law, pairs)
    table = _table(top, law, pairs, given, contacts, limits)
    dry = top.friction_dofs if law.joint_friction else ()
    key = native.register(table)
    return CompiledSystem(
        key, top, law, integrator, contacts, limits, len(dry), closure_count(top), given, pairs.others, pairs.slots,
        native.report_size(key),
    )  # fmt: skip


def topology_table(model: Model, law: ContactLaw) -> Int[np.ndarray, " n"]:
    """What is static of the model and the law, in the order in which native/topology.h reads it."""
    top, sizes = model.topology, tuple(int(np.shape(mesh)[0]) for mesh in model.meshes)
    pairs = pairs_under(top, sizes, law)
    return _table(top, law, pairs, _given_count(top, sizes, law, pairs), law.contact_rows(model), law.limit_rows(model))


def _table(
    top: Topology, law: ContactLaw, pairs: CompiledPairs, given: int, contacts: int, limits: int
) -> Int[np.ndarray, " n"]:
    touching = law.acts
    dry = top.friction_dofs if law.joint_friction else ()
    table = [top.n_nodes, top.nv, top.nq]
    for kind, parent in zip(top.node_types, top.parents, strict=True):
        table += [int(kind), parent]
    table += [len(top.mimics), *(number for mimic in top.mimics for number in (mimic.dof, mimic.source))]
    table += top.user_dofs.tolist()
    table += [top.nq_tree]
    for index, slot in zip(*_tree_coordinates(top), strict=True):
        table += [int(index), int(slot)]
    table += top.scalar_q_of_dof.tolist()
    limited = top.limited if law.limits else ()
    table += [len(limited), *limited, len(dry), *dry]
    table += [len(top.closures)]
    for closure in top.closures:
        kept = CLOSURE_ROWS[closure.kind]
        table += [closure.node1 % (top.n_nodes + 1), closure.node2 % (top.n_nodes + 1), len(kept), *kept]
    table += [len(top.couplings)]
    owner = [shape.node % (top.n_nodes + 1) for shape in top.shapes]
    hulls = pairs.hulls(top)

    def hull_of(spec: ShapeSpec) -> int:
        return list(hulls).index(spec.mesh) if spec.kind == ShapeType.MESH else -1

    table += [len(pairs.planes), *(owner[plane] for plane in pairs.planes), len(pairs.against)]
    for x in pairs.against:
        table += [int(top.shapes[x.shape].kind), owner[x.shape], pairs.planes.index(x.plane), owner[x.plane], x.pair]
        table += [int(x.on_face), x.ball, x.balls, hull_of(top.shapes[x.shape]), x.kept, x.slot]
    shapes = pairs.shapes_between
    table += [len(hulls)]
    for mesh, triangles in hulls.items():
        faces, edges = [k for triangle in triangles for k in triangle], edges_of(triangles).reshape(-1).tolist()
        table += [pairs.mesh_sizes[mesh], len(faces), *faces, len(edges), *edges]
    table += [len(shapes)]
    for shape in shapes:
        spec = top.shapes[shape]
        table += [int(spec.kind), owner[shape], hull_of(spec)]
    table += [len(pairs.between)]
    for y in pairs.between:
        table += [shapes.index(y.one), shapes.index(y.two), int(y.swapped), y.pair, y.kept, y.slot]
    table += [pairs.balls, len(top.pairs) if touching else 0, given, pairs.candidates, contacts, limits]
    table += _law_switches(law)
    return np.array(table, np.int64)


def _law_switches(law: ContactLaw) -> list[int]:
    """What is static of the law, in the order in which native/topology.h reads it; `_law_numbers` are its numbers."""
    return [
        -1 if law.max_contacts is None or not law.acts else law.max_contacts,
        -1 if law.max_limits is None else law.max_limits,
        law.max_iterations,
        int(law.gap == "detect"),
        int(law.contact_sharpness(None) is not None),
        int(law.relaxed),
    ]


def _law_numbers(
    law: ContactLaw, kappa: float | Float[Array, ""] | None, rho: float | Float[Array, ""] | None
) -> list[float | Float[Array, ""]]:
    """The numbers of the law, in the order in which native/parameters.h reads them. kappa, rho: of `pack_parameters`."""
    sharpness = law.contact_sharpness(kappa)
    return [
        law.erp,
        law.damping,
        law.rest_velocity,
        default_tolerance(jnp.float64) if law.tolerance is None else law.tolerance,
        np.inf if law.push_out_speed is None else law.push_out_speed,
        0.0 if sharpness is None else sharpness,
        0.0 if rho is None else rho,
    ]


def _given_count(top: Topology, mesh_sizes: tuple[int, ...], law: ContactLaw, pairs: CompiledPairs) -> int:
    if not pairs.others:
        return 0
    part = dataclasses.replace(top, pairs=tuple(top.pairs[k] for k in pairs.others))
    count = 0
    for group in pair_groups(part):
        many = mesh_sizes[group.mesh] if group.per_pair is None else group.per_pair
        count += many * group.taken(law.pair_limit)
    return count


def _tree_coordinates(top: Topology) -> tuple[Int[np.ndarray, " q"], Int[np.ndarray, " q"]]:
    """User coordinate that each tree coordinate reads, and its mimic joint, -1 for none."""
    if not top.mimics:
        return np.arange(top.nq_tree), np.full(top.nq_tree, -1)
    index, slot = mimic_coordinates(top)
    return index, np.where(slot < len(top.mimics), slot, -1)


# --- the numbers ------------------------------------------------------------------------------------------------------------

_LEAVES = (
    "placement_rotation", "placement_position", "axis", "reference", "mass", "com", "inertia",
    "armature", "damping", "stiffness", "spring_reference", "lower", "upper", "frictionloss",
)  # fmt: skip


def pack_parameters(
    compiled: CompiledSystem,
    model: Model,
    dt: float | Float[Array, ""],
    kappa: float | Float[Array, ""] | None = None,
    rho: float | Float[Array, ""] | None = None,
) -> Float[Array, " p"]:
    """dt, the law's numbers and the model's as one array in the order of native/parameters.h; differentiable, traced or not.

    In the precision of the model, whose numbers are what they are: the core widens those of float32.
    kappa (1/m): sharpness of smoothed contact, None for the law's own. rho (J): relaxation of relaxed contact.
    """
    top = compiled.topology
    dtype = jax.dtypes.canonicalize_dtype(model.mass.dtype)
    numbers = functools.partial(jnp.asarray, dtype=dtype)
    law = jnp.stack([numbers(x) for x in _law_numbers(compiled.law, kappa, rho)])
    unused = jnp.zeros(PARAMETER_HEAD - 4 - law.size, dtype)
    head = jnp.concatenate([numbers(dt).reshape(1), numbers(model.gravity), law, unused])
    raw = jnp.concatenate(
        [numbers(np.array([0.0, 1.0]))] + [numbers(getattr(model, name)).reshape(-1) for name in _LEAVES]
    )
    lanes = raw[_lane_places(top)]
    mimics = [numbers(model.mimic_multiplier), numbers(model.mimic_offset)]
    touching = compiled.law.acts
    shapes = shape_numbers(compiled.topology, compiled.law, model) if touching else []
    names = ("pair_friction", "pair_restitution", "pair_impact_friction") if touching else ()
    pairs = [numbers(getattr(model, name)) for name in names]
    return jnp.concatenate([head, lanes, *mimics, *shapes, *pairs, *_equality_numbers(model, numbers)])


def _equality_numbers(model: Model, numbers) -> list[Array]:
    """The frames of closures, each its rotation and position, and the numbers of couplings."""
    closures, couplings = len(model.topology.closures), len(model.topology.couplings)
    frames = [numbers(model.closure_rotation).reshape(closures, 2, 9), numbers(model.closure_position)]
    reference = numbers(model.coupling_reference)
    arms = numbers(model.coupling_arms).reshape(couplings, -1) if couplings else jnp.zeros((0, 0), reference.dtype)
    laws = [arms, reference, numbers(model.coupling_polynomial)]
    return [jnp.concatenate(frames, 2).reshape(-1), jnp.concatenate(laws, 1).reshape(-1)]


@functools.lru_cache(maxsize=128)
def _lane_places(top: Topology) -> Int[np.ndarray, " k"]:
    """Place in [0, 1, leaves of `_LEAVES` one after the other] of each number of each lane; 0 where a lane has none."""
    n, nv = top.n_nodes, top.nv
    widths = {"placement_rotation": 9, "placement_position": 3, "axis": 3, "com": 3, "inertia": 9}
    start, at = {}, 2
    for name in _LEAVES:
        start[name] = at
        at += widths.get(name, 1) * (n if name in _LEAVES[:7] else nv)
    lanes = -(-max(top.nv_tree, 1) // 8) * 8
    rows = {"rotation": 9, "position": 3, "axis": 3, "reference": 1, "turns": 1, "mass": 1, "com": 3, "inertia": 6}
    table = {name: np.zeros((count, lanes), int) for name, count in rows.items()}
    for i, kind in enumerate(top.node_types):
        first, many = int(top.v_starts[i]), NODE_NV[kind]
        last = first + many - 1
        scalar = kind in (NodeType.REVOLUTE, NodeType.PRISMATIC)
        table["rotation"][:, first] = start["placement_rotation"] + 9 * i + np.arange(9)
        table["position"][:, first] = start["placement_position"] + 3 * i + np.arange(3)
        for k in range(many):
            table["axis"][:, first + k] = start["axis"] + 3 * i + np.arange(3) if scalar else np.arange(3) == k
            table["turns"][0, first + k] = kind in (NodeType.REVOLUTE, NodeType.BALL)
        if scalar:
            table["reference"][0, first] = start["reference"] + i
        table["mass"][0, last] = start["mass"] + i
        table["com"][:, last] = start["com"] + 3 * i + np.arange(3)
        table["inertia"][:, last] = start["inertia"] + 9 * i + np.array([0, 1, 4, 2, 5, 8])
    joints = np.zeros((7, lanes), int)
    for k, name in enumerate(_LEAVES[7:]):
        joints[k, :nv] = start[name] + np.arange(nv)
    return np.concatenate([*(part.reshape(-1) for part in table.values()), joints.reshape(-1)])
