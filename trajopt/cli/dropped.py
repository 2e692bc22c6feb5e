"""The warning that contacts were left out of a motion, and the options that would have held them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from trajopt.dynamics.collision.narrowphase import contact_count
from trajopt.solvers.loop.solution import Solution

KEY = "dropped_contacts"  # of `Solution.residuals`: over all steps


def dropped_warning(problem: Any, solution: Solution) -> str | None:
    """A line that names max_contacts, max_limits or max_pairs and the smallest number that would have fitted; None when no step
    of the motion dropped anything.

    Of a problem that is not made of a `System` only the sum over all steps is known: that would have sufficed.
    """
    total = solution.residuals.get(KEY, 0.0)
    if not total > 0:
        return None
    system = getattr(problem, "system", None)
    if system is None or solution.xs is None or solution.us is None:
        kept = np.shape(solution.trajectory.get("impulse", np.zeros((0, 0, 3))))[1]
        return (
            f"{total:.0f} contacts or limits, all steps together, did not fit into the contact law and were ignored; it keeps "
            f"{kept} contacts a step: raise its max_contacts, {kept + int(total)} is enough (or max_limits)"
        )
    dropped, pairs = _counts(problem, solution)
    law, model = system.contact, system.model
    rows, unseen = int((dropped - pairs).max()), int(pairs.max())
    remedies = []
    contacts, limits = law.contact_rows(model), law.limit_rows(model)
    if rows and contacts < contact_count(model, law.pair_limit):
        remedies.append(f"max_contacts={contacts + rows} (now {contacts})")
    if rows and limits < len(model.topology.limited):
        remedies.append(f"max_limits={limits + rows} (now {limits})")
    options = " or ".join(remedies)
    if unseen:
        now = "the default" if law.max_pairs is None else law.max_pairs
        more = f"{law.max_pairs + unseen}" if law.max_pairs is not None else f"{unseen} more than that"
        options += f"{' and ' if options else ''}max_pairs={more} (now {now})"
    return (
        f"{int((dropped > 0).sum())} of {len(dropped)} steps had up to {int(dropped.max())} contacts or limits more than "
        f"{type(law).__name__} keeps, which ignored them; enough would be {options}"
    )


def _counts(problem: Any, solution: Solution) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " T"]]:
    """`StepInfo.dropped` and `dropped_pairs` of every step of the solution's motion."""
    parameters = np.zeros(problem.n_p) if solution.parameters is None else solution.parameters
    system = problem.system_at(jnp.asarray(parameters))

    def step(at):
        _, info = system.step(problem.as_state(at[0]), at[1])
        return info.dropped, info.dropped_pairs

    motion = jnp.asarray(solution.xs)[:-1], jnp.asarray(solution.us)
    dropped, pairs = jax.jit(lambda motion: jax.lax.map(step, motion))(motion)
    return np.asarray(dropped), np.asarray(pairs)
