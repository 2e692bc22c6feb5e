"""The augmented Lagrangian of constraints that is carried from solve to solve of a receding horizon.

Multipliers are shifted like the plan. They follow their first-order update after an iteration that gained little beside what the
rows still cost (`due`): updates in the middle of a minimisation overshoot. A row's penalty then grows while its
violation is above `SLACK` and does not fall, up to `GROWTH` times the first one, and starts anew where the row does not bind.
Multipliers end at `LARGEST`: beyond it the term is the exact penalty |c| `LARGEST`, with which a plan that cannot keep a row
violates it as little as it can.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, ScalarLike

from trajopt.solvers.plan import shifted_rows
from trajopt.solvers.subproblems import augmented_lagrangian as al

FIRST = 1e5  # least penalty in the loop: a solve has few iterations, and starts near its answer
GROWTH = 10.0  # of a penalty in the loop
LARGEST = 1.0  # multiplier, in units of the first penalty and of the row: what cannot be kept is not asked for ever harder
SLACK = 1e-4  # violation, in the row's unit, below which a penalty does not grow


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Carried:
    """Multipliers and penalties, and the rows' excess before the last update."""

    multipliers: al.Multipliers
    excess: tuple[Any, Any]


@dataclasses.dataclass(frozen=True)
class CarriedRule:
    """How they follow. penalty: the first one; factor: by which it grows."""

    penalty: float
    factor: float

    def first(self, constraints: al.Constraints) -> Carried:
        """Before the first solve."""
        multipliers = constraints.initial(self.penalty)
        return Carried(multipliers, (np.full_like(multipliers.stage, np.inf), np.full_like(multipliers.terminal, np.inf)))

    def shifted(self, constraints: al.Constraints, carried: Carried, shift: ScalarLike) -> Carried:
        """Those of a plan `shift` knots later."""
        m, counts = carried.multipliers, jnp.asarray(constraints.relevant())
        stage = jnp.where(counts, shifted_rows(m.stage, shift), 0.0)
        penalty = jnp.where(counts, jnp.maximum(shifted_rows(m.stage_penalty, shift), self.penalty), 0.0)
        multipliers = al.Multipliers(stage, m.terminal, penalty.astype(m.stage.dtype), m.terminal_penalty)
        return Carried(multipliers, (shifted_rows(carried.excess[0], shift), carried.excess[1]))

    def due(self, constraints: al.Constraints, carried: Carried, rows: al.Rows, gain: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether an update is worth more than another iteration like the last one, which gained so much."""
        return jnp.abs(gain) <= al.SLIGHT * constraints.worth(carried.multipliers, rows)

    def after(self, constraints: al.Constraints, carried: Carried, rows: al.Rows) -> Carried:
        """After an update at a motion with these rows."""
        parts = constraints.parts(carried.multipliers, rows)
        stage, end = (self._updated(*part, before) for part, before in zip(parts, carried.excess, strict=True))
        return Carried(al.Multipliers(stage[0], end[0], stage[1], end[1]), (stage[2], end[2]))

    def _updated(
        self, y: Array, w: Array, c: Array, inequality: Bool[np.ndarray, " m"], before: Array
    ) -> tuple[Array, Array, Array]:
        """(multipliers, penalties, excess) of rows c."""
        most = LARGEST * self.penalty
        new = jnp.where(w > 0, jnp.clip(al.estimate(y, w, c, inequality), -most, most), 0.0)
        now = al.excess(y, w, c, inequality)
        grows = (now > al.SUFFICIENT_FALL * before) & (now > SLACK)
        raised = jnp.where(grows, jnp.minimum(self.factor * w, GROWTH * self.penalty), w)
        slack = inequality & (new <= 0) & (w > 0)
        return new, jnp.where(slack, self.penalty, raised).astype(w.dtype), now


def carried_rule(penalty: float, factor: float) -> CarriedRule:
    """The rule of a solver with these options."""
    return CarriedRule(max(penalty, FIRST), factor)


def largest_rows(constraints: al.Constraints, rows: al.Rows) -> Float[Array, " r"]:
    """The largest violation of each row, those of the stages before those of the end."""
    kinds = constraints.inequality()
    sizes = [jnp.where(kind, jnp.maximum(c, 0.0), jnp.abs(c)) for kind, c in zip(kinds, rows, strict=True)]
    most = jnp.max(jnp.where(jnp.asarray(constraints.relevant()), sizes[0], 0.0), axis=0, initial=0.0)
    return jnp.concatenate([most, sizes[1]])
