"""The compiled contact solve on plain arrays, without a model: the last stage of the JAX implementation on CPUs, and a batch of
problems of one size for tests and benchmarks."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trajopt import native
from trajopt.errors import ShapeError
from trajopt.result import Status

STATUSES = ("solved", "stalled", "infeasible", "non_finite")  # ContactStatus of contact_solve.h


class ContactSolutions(NamedTuple):
    """impulse (B, m) N s and velocity (B, m) m/s, rows as in `trajopt.dynamics.contact.ncp`; mode (B, nc + nl + nf): 0
    separating, 1 sticking, 2 sliding of contacts, 1 where a limit or a dry row is held; residual (relative,
    docs/contact-semantics.md); nanoseconds of a solve; iterations; fallbacks: the last stage that ran, 0 Newton,
    1 Gauss-Seidel, 2 the path of the regularised problem (`trajopt.dynamics.Stage`); status: a position in `STATUSES`;
    degenerate, selected: as in `NCPSolution`; rows that exist."""

    impulse: Float[Array, "B m"]
    velocity: Float[Array, "B m"]
    mode: Int[Array, "B k"]
    residual: Float[Array, " B"]
    nanoseconds: Float[Array, " B"]
    iterations: Int[Array, " B"]
    fallbacks: Int[Array, " B"]
    status: Int[Array, " B"]
    degenerate: Bool[Array, " B"]
    selected: Bool[Array, " B"]
    rows: Int[Array, " B"]

    def statuses(self) -> list:
        """Of each problem, as members of `trajopt.result.Status`."""
        return [getattr(Status, STATUSES[int(k)]) for k in np.asarray(self.status)]


def solve_contacts(
    G: Float[Array, "B m1 m2"],
    g: Float[Array, "B m"],
    mu: Float[Array, "B nc"],
    exists: Bool[Array, "B ncl"] | None = None,
    bound: Float[Array, "B nf"] | None = None,
    init: Float[Array, "B m"] | None = None,
    *,
    tol: float = 1e-10,
    max_iterations: int = 50,
    repeats: int = 1,
) -> ContactSolutions:
    """Solve B problems nu = G lambda + g under the law of docs/contact-semantics.md in float64, one after the other.

    Rows: three for each contact (tangent 1, tangent 2, normal), limits, dry friction. mu: per contact. exists: contacts and
    limits that are part of the problem (default: all). bound: largest impulse of dry friction, N s; infinity makes the row
    bilateral. init: starts, which have no influence on which solution is returned. repeats: solves of each, for timing. Raises
    `ShapeError` where the shapes do not belong together, `TrajoptError` where the compiled core is not available.
    """
    count, m = np.shape(g)
    contacts = np.shape(mu)[1]
    bound = jnp.zeros((count, 0)) if bound is None else bound
    exists = jnp.ones((count, m - 2 * contacts - np.shape(bound)[1]), bool) if exists is None else exists
    init = jnp.zeros((count, m)) if init is None else init
    single = m - 2 * contacts - np.shape(bound)[1]
    expected = {"G": (count, m, m), "mu": (count, contacts), "exists": (count, single), "init": (count, m)}
    given = {"G": G, "mu": mu, "exists": exists, "init": init}
    for name, shape in expected.items():
        if np.shape(given[name]) != shape:
            raise ShapeError(f"{name} has shape {np.shape(given[name])}, expected {shape} for g of shape {(count, m)}")
    arrays = [jnp.asarray(a, jnp.float64) for a in (G, g, mu)], [jnp.asarray(a, jnp.float64) for a in (bound, init)]
    impulse, velocity, mode, numbers, counts = _solved(native.instruction_set(), tol, max_iterations, repeats)(
        *arrays[0], jnp.asarray(exists, bool), *arrays[1]
    )
    iterations, fallbacks, status, degenerate, selected, rows = counts.T
    return ContactSolutions(
        impulse, velocity, mode, numbers[:, 0], numbers[:, 1], iterations, fallbacks, status, degenerate != 0, selected != 0, rows
    )


def impulse_of(
    G: Float[Array, "m m"],
    g: Float[Array, " m"],
    mu: Float[Array, " nc"],
    exists: Bool[Array, " ncl"],
    bound: Float[Array, " nf"],
    init: Float[Array, " m"],
    *,
    tol: float,
    max_iterations: int,
) -> tuple[Float[Array, " m"], Int[Array, ""], Int[Array, ""]]:
    """(impulse, iterations, position in `STATUSES`) of one problem in float64, inside a compiled function for a CPU."""
    problem = (x[None] for x in (G, g, mu, exists, bound, init))
    impulse, _, _, _, counts = _call(*problem, tol=tol, max_iterations=max_iterations)
    return impulse[0], counts[0, 0], counts[0, 2]


@functools.cache
def _solved(isa: str, tol: float, max_iterations: int, repeats: int):
    return jax.jit(functools.partial(_call, tol=tol, max_iterations=max_iterations, repeats=repeats))


def _call(G, g, mu, exists, bound, init, *, tol: float, max_iterations: int, repeats: int = 1):
    shape, (count, m) = jax.ShapeDtypeStruct, g.shape
    out = (
        shape((count, m), jnp.float64),
        shape((count, m), jnp.float64),
        shape((count, exists.shape[1] + bound.shape[1]), jnp.int32),
        shape((count, 2), jnp.float64),
        shape((count, 6), jnp.int32),
    )
    options: dict[str, Any] = {"tolerance": float(tol), "max_iterations": int(max_iterations), "repeats": int(repeats)}
    return native.call("solve_contacts", out, G, g, mu, exists, bound, init, **options)
