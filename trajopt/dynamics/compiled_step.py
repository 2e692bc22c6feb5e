"""Calls of the compiled core (`compiled` says what goes in, `report` what a step tells of itself)."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt import native
from trajopt.dynamics.collision.narrowphase import collide, collide_with_derivatives, pair_groups
from trajopt.dynamics.compiled import CompiledSystem, compile_system, pack_parameters
from trajopt.dynamics.contact.approach import count_missed_pairs
from trajopt.dynamics.contact.inputs import StepInputs
from trajopt.dynamics.integrators import where_impulses_act
from trajopt.dynamics.model import Topology
from trajopt.dynamics.report import HEAD, PackedStepInfo
from trajopt.dynamics.rigid_body.actuation import ForceSlopes
from trajopt.dynamics.rigid_body.kinematics import kinematics
from trajopt.dynamics.state import State
from trajopt.errors import OptionError

GIVEN, SLOPE = 14, 42  # numbers of a candidate that is handed over, and of its slope, as in native/candidates.h


class CoreSteps(NamedTuple):
    """What the core returns of a step, or of T steps in a row with T in front: the head of its report, q+ and v+; under a policy
    its controls u.

    report: the whole one; answers, along: of `compiled_parameters`.
    Where the derivative is asked for, A = d x+ / d x at fixed tau and B = (d x+ / d tau) gain in tangent coordinates [dq, dv],
    and C and D, the same of the reported impulses.
    """

    head: Float[Array, "*T h"]
    q: Float[Array, "*T nq"]
    v: Float[Array, "*T nv"]
    A: Float[Array, "n n"] | None = None
    B: Float[Array, "n k"] | None = None
    C: Float[Array, "m n"] | None = None
    D: Float[Array, "m k"] | None = None
    u: Float[Array, "T nu"] | None = None
    report: Float[Array, "*T r"] | None = None
    answers: Float[Array, "r a"] | None = None
    along: Float[Array, " s"] | None = None

    @property
    def state(self) -> State:
        """The state after the step."""
        return State(self.q, self.v)


class Policy(NamedTuple):
    """u = clip(u_t + K_t (x_t (-) x_bar_t), lower, upper) takes the place of the controls u of T steps."""

    x_bar: Float[Array, "T nx"]
    K: Float[Array, "T nu n"]
    lower: Float[Array, " nu"]
    upper: Float[Array, " nu"]


class Given(NamedTuple):
    """Candidates that are handed over (`given_candidates`), their slopes, and how many pairs could touch unseen."""

    candidates: Float[Array, "k 14"]
    slopes: Float[Array, "k 42"]
    dropped_pairs: Int[Array, ""]


def core_steps(
    compiled: CompiledSystem,
    parameters: Float[Array, " p"],
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, "*T nv"],
    *,
    u: Float[Array, "*T nu"] | None = None,
    motors: int = 0,
    given: Given | None = None,
    gain: Float[Array, "nv k"] | None = None,
    impulse: bool = False,
    answers: bool = False,
    policy: Policy | None = None,
    whole: bool = True,
) -> CoreSteps:
    """A step under the generalised force tau (nv,), or T steps in a row under tau (T, nv): the numbers of T single steps.

    u: controls; where one of them is not finite, the status is `non_finite`. motors: where it is not zero, `parameters` go on
    with the lever arms (nv, motors), and arms u is added to tau. gain: asks for the derivative of a single step, by controls
    where it is d tau / d u, by forces where it is the identity; with motors it is the lever arms, whatever is given. impulse:
    whether the impulse is differentiated too. answers: whether those to parameters are asked for, with the impulse. whole:
    whether the whole report is, which has the closest contacts, however far they are. Compiled functions in which nothing reads
    it do not make it, and then the core looks only at what can touch. No derivative of the call itself is defined.
    """
    if given is None and compiled.given:
        raise OptionError(f"given is None, but {compiled.given} candidates of the model are handed over to the core")
    top, leading, dtype = compiled.topology, tau.shape[:-1], q.dtype
    shapes = [(*leading, k) for k in (len(HEAD), top.nq, top.nv)]
    names: tuple[str, ...] = ()
    u = jnp.zeros((*leading, 0), dtype) if u is None else u
    if policy is not None:
        names, shapes = ("u",), [*shapes, u.shape]
    elif gain is not None:
        n, columns = 2 * top.nv, motors or gain.shape[1]
        names = ("A", "B", "C", "D") if impulse else ("A", "B")
        shapes += [(rows, k) for rows in (n, compiled.reported)[: len(names) // 2] for k in (n, columns)]
        if answers:
            rows, changes = compiled.reported, compiled.contacts + compiled.dry + compiled.equalities
            names = (*names, "answers", "along")
            shapes += [(top.nv + rows, 2 * rows + changes + top.nv), (rows + top.nv,)]
    given = _no_candidates(dtype) if given is None else given
    gain = jnp.zeros((top.nv, 0), dtype) if gain is None else gain
    arguments = (parameters, q, v, u, tau, given.candidates, given.slopes, gain, *(() if policy is None else policy))
    if whole:
        names, shapes = (*names, "report"), [*shapes, (*leading, compiled.report_size)]
    head, q, v, *more = native.call(
        "steps", tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes), *arguments,
        topology=compiled.key, integrator=compiled.scheme, motors=motors, whole=int(whole),
        unread=(("whole", 0),) if whole else (),
    )  # fmt: skip
    return CoreSteps(head, q, v, **dict(zip(names, more, strict=True)))


def step_by_core(
    integrator: str,
    start: StepInputs,
    gain: Float[Array, "nv k"] | None = None,
    *,
    impulse: bool = False,
    answers: bool = False,
) -> tuple[CoreSteps, PackedStepInfo]:
    """A step of the core and its report. gain: asks for its Jacobian by state and, along these columns, by forces; impulse and
    answers as of `core_steps`.
    """
    compiled = compile_system(start.model, start.law, integrator)
    parameters = pack_parameters(compiled, start.model, start.dt, start.kappa, start.rho)
    given = given_candidates(compiled, start, slopes=gain is not None)
    y = core_steps(
        compiled, parameters, start.q, start.v, start.tau,
        given=given, gain=gain, impulse=impulse, answers=answers,
    )  # fmt: skip
    return y, PackedStepInfo(y.head, y.report, given.dropped_pairs, compiled.report_layout)


def chained(y: CoreSteps, slopes: ForceSlopes | None) -> CoreSteps:
    """`y`, differentiated along the columns of `slopes`, with the derivative by controls; None: `y` has it."""
    if slopes is None or y.A is None or y.B is None:
        return y
    A, B = slopes.chained(y.A, y.B)
    C, D = (None, None) if y.C is None or y.D is None else slopes.chained(y.C, y.D)
    return y._replace(A=A, B=B, C=C, D=D)


# --- candidates that are handed over ----------------------------------------------------------------------------------------


def given_candidates(compiled: CompiledSystem, start: StepInputs, slopes: bool = False) -> Given:
    """Candidates of the pairs that the core does not collide by itself. slopes: whether their slopes are asked for.

    A row: distance, point, normal, centre, node 1, node 2, pair, place in the list of all candidates of the model.
    """
    if not compiled.given:
        return _no_candidates(start.q.dtype)
    model, q = start.model, where_impulses_act(compiled.integrator, start).q
    index = np.array(compiled.given_pairs, int)
    part = dataclasses.replace(compiled.topology, pairs=tuple(compiled.topology.pairs[k] for k in index))
    few = dataclasses.replace(
        model, topology=part, pair_friction=model.pair_friction[index], pair_restitution=model.pair_restitution[index],
        pair_impact_friction=model.pair_impact_friction[index],
    )
    kin = kinematics(few, q)
    motion, limit = jnp.zeros((0, SLOPE), q.dtype), compiled.law.pair_limit
    if slopes:
        found, motion = collide_with_derivatives(few, kin, limit, start.travel)
    else:
        found = collide(few, kin, limit, start.travel)
    places = jnp.asarray(_given_places(compiled, part, tuple(int(np.shape(mesh)[0]) for mesh in model.meshes)))
    place = places if found.culled is None else places[found.culled.candidate]
    whole = jnp.stack([found.node1, found.node2, jnp.asarray(index)[found.pair], place], 1).astype(q.dtype)
    rows = jnp.concatenate([found.distance[:, None], found.point, found.normal, found.centre, whole], 1)
    return Given(rows, motion.reshape(-1, SLOPE), count_missed_pairs(few, kin, found.culled, start.v, start.dt))


def _no_candidates(dtype: np.dtype) -> Given:
    return Given(jnp.zeros((0, GIVEN), dtype), jnp.zeros((0, SLOPE), dtype), jnp.zeros((), int))


@functools.lru_cache(maxsize=128)
def _given_places(compiled: CompiledSystem, part: Topology, mesh_sizes: tuple[int, ...]) -> Int[np.ndarray, " k"]:
    """Place in the list of all candidates of each candidate of `part`, the model without the core's own pairs."""
    places: list[int] = []
    for group in pair_groups(part):
        many = mesh_sizes[group.mesh] if group.per_pair is None else group.per_pair
        for pair in group.pairs:
            places += range(compiled.given_slots[pair], compiled.given_slots[pair] + many)
    return np.array(places, int)
