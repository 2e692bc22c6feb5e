"""Where the variables, constraint rows and non-zeros of a multiple-shooting transcription lie.

T steps are cut into N intervals of K steps, the last one possibly shorter. The variables are

    w = [xi_0 (if the initial state is free), U_0, xi_1, U_1, ..., xi_{N-1}, U_{N-1}, xi_N, p]

with xi_k (n,) the tangent coordinates of the state at the start of interval k about a reference state and U_k the controls
of its steps. Interval k depends on its local variables [xi_k, U_k, p] alone (c = n + K nu + np of them), and a constraint at
its step j on the controls up to j; these are the structural non-zeros. Arrays over intervals are padded to K steps; -1 marks
what a shorter interval, or a given initial state, does not have.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajopt.errors import ShapeError
from trajopt.problems.ocp import CONSTRAINTS, OptimalControlProblem
from trajopt.problems.zero_rows import used_rows


class NonZeros(NamedTuple):
    """Non-zeros of a sparse matrix: their rows and columns, their places (`picked`) among the entries of the padded blocks, and
    how many entries each block has."""

    rows: np.ndarray
    columns: np.ndarray
    picked: np.ndarray
    sizes: tuple[int, ...]

    def values(self, blocks: Sequence[Float[Array, "..."]]) -> Float[Array, " nz"]:
        """The non-zeros' values from the padded blocks, in the order of `sizes`.

        Raises `ShapeError` for blocks of other sizes, which JAX would read past their end without a word.
        """
        sizes = tuple(block.size for block in blocks)
        if sizes != self.sizes:
            raise ShapeError(f"the blocks have {sizes} entries; this sparsity pattern expects {self.sizes}")
        return jnp.concatenate([block.ravel() for block in blocks])[self.picked]


def used_at_steps(problem: OptimalControlProblem) -> tuple[bytes, ...]:
    """(T, m) flags of equality and inequality, those rows that are not zero at every motion: others would count against the
    degrees of freedom, which IPOPT asks for."""
    flags = (np.zeros(0, bool) if getattr(problem, kind) is None else used_rows(problem, kind) for kind in CONSTRAINTS[:2])
    return tuple(each.tobytes() for each in flags)


class Layout:
    """Index tables of one transcription; see the module's docstring for N, K and c.

    nodes (N+1, n), controls (N, K, nu) and parameters (np,): places in w; `step` (N, K): index of the time step, that of
    the last step where there is none; `valid` (N, K). `exact`: whether Hessians hold the constraints' curvature. used: which
    rows of equality and inequality there are at each step (`used_at_steps`). `rows`: places in g of each kind of constraint.
    `jacobian` and `hessian` (lower triangle): the non-zeros.
    """

    def __init__(self, problem: OptimalControlProblem, interval: int, exact: bool, used: tuple[bytes, ...]) -> None:
        T, n, nu, n_p = problem.horizon, problem.n, problem.nu, problem.n_p
        self.problem, self.exact, self.K = problem, exact, min(interval, T)
        self.N = N = -(-T // self.K)
        self.lengths = np.full(N, self.K)
        self.lengths[-1] = T - (N - 1) * self.K
        steps = np.arange(N * self.K).reshape(N, self.K)
        self.valid, self.step = steps < T, np.minimum(steps, T - 1)
        self._place_variables(T, n, nu, n_p)
        self._place_rows(used)
        self.local = np.concatenate(
            [self.nodes[:-1], np.where(self.valid[:, :, None], self.controls, -1).reshape(N, -1), self._tiled(N)], 1
        )
        self.jacobian = _structure(self._jacobian_blocks())
        self.hessian = _structure(self._hessian_blocks())

    # -- variables -----------------------------------------------------------------------------------------------------

    def _place_variables(self, T: int, n: int, nu: int, n_p: int) -> None:
        first = n if self.problem.free_initial_state else 0
        k = np.arange(self.N + 1)
        start = np.maximum(first + (k - 1) * n, 0) + np.minimum(k * self.K, T) * nu
        self.nodes = start[:, None] + np.arange(n)
        if not first:
            self.nodes[0] = -1
        interval, j = self.step // self.K, self.step % self.K
        after_node = start[interval] + np.where(interval > 0, n, first)
        self.controls = (after_node + j * nu)[..., None] + np.arange(nu)
        self.parameters = start[-1] + n + np.arange(n_p)
        self.variables = int(start[-1] + n + n_p)

    def _tiled(self, count: int) -> np.ndarray:
        return np.tile(self.parameters, (count, 1))

    @property
    def coordinate(self) -> Int[np.ndarray, " k"]:
        """(nx,) the tangent coordinate that an entry of the state is, -1 where it is none (quaternions)."""
        problem, system = self.problem, self.problem.system
        place = np.full(problem.nx, -1)
        if system is not None:
            scalar = np.asarray(system.model.topology.scalar_q_of_dof)
            place[scalar[scalar >= 0]] = np.flatnonzero(scalar >= 0)
            place[system.nq :] = system.nv + np.arange(problem.nx - system.nq)
        elif problem.integrate is None:
            place[:] = np.arange(problem.nx)
        return place

    # -- constraint rows -----------------------------------------------------------------------------------------------

    def _place_rows(self, used: tuple[bytes, ...]) -> None:
        problem, N = self.problem, self.N
        bounded = problem.finite("state_lower") | problem.finite("state_upper")
        self.bounded = np.flatnonzero(bounded)  # entries of the state with a bound
        self.as_rows = np.flatnonzero(bounded & (self.coordinate < 0))  # and, at nodes, those that are no variable
        inner = self.valid & (np.arange(self.K) > 0)
        present = self.nodes[:, 0] >= 0
        masks: dict[str, np.ndarray] = {"defect": np.ones((N, problem.n), bool)}
        for kind, flags in zip(CONSTRAINTS[:2], used, strict=True):
            at_steps = np.frombuffer(flags, bool).reshape(problem.horizon, self._size(kind))
            masks[kind] = self.valid[:, :, None] & at_steps[self.step]
        masks["inner_bounds"] = np.repeat(inner[:, :, None], self.bounded.size, 2)
        masks["node_bounds"] = np.repeat(present[:, None], self.as_rows.size, 1)
        for kind in CONSTRAINTS[2:]:
            masks[kind] = np.ones(self._size(kind), bool)
        self.rows: dict[str, np.ndarray] = {}
        self.constraints = 0
        for kind, mask in masks.items():
            place = np.full(mask.shape, -1)
            place[mask] = self.constraints + np.arange(mask.sum())
            self.rows[kind] = place
            self.constraints += int(mask.sum())

    def _size(self, kind: str) -> int:
        """Rows of one kind of constraint at a step, or at the end."""
        problem = self.problem
        if getattr(problem, kind) is None:
            return 0
        struct = lambda a: jax.ShapeDtypeStruct(a.shape, problem.dtype)  # noqa: E731
        x, u, p = struct(problem.x0), struct(problem.u0[0]), struct(problem.parameters)
        if kind.startswith("terminal"):
            out: Any = jax.eval_shape(lambda x, p: problem.terminal(kind, x, p), x, p)
        else:
            t = jax.ShapeDtypeStruct((), problem.dtype)
            out = jax.eval_shape(lambda x, u, t, p: problem.stage(kind, x, u, t, p), x, u, t, p)
        return out.shape[0]

    def pick(self, values: dict[str, Any], join: Any) -> Any:
        """g (m,) from the padded values of each kind; `join` concatenates."""
        return join([values[kind].ravel()[np.flatnonzero(place.ravel() >= 0)] for kind, place in self.rows.items()])

    @property
    def constraint_bounds(self) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """Lower and upper bounds of g."""
        problem, lower, upper = self.problem, np.zeros(self.constraints), np.zeros(self.constraints)
        for kind, entries in (("inner_bounds", self.bounded), ("node_bounds", self.as_rows)):
            place = self.rows[kind]
            for bound, values in ((lower, problem.state_lower), (upper, problem.state_upper)):
                bound[place[place >= 0]] = np.broadcast_to(values[entries], place.shape)[place >= 0]
        for kind in ("inequality", "terminal_inequality"):
            place = self.rows[kind]
            lower[place[place >= 0]] = -np.inf
        return lower, upper

    def variable_bounds(
        self, reference: Float[np.ndarray, "nodes nx"]
    ) -> tuple[Float[np.ndarray, " nw"], Float[np.ndarray, " nw"]]:
        """Bounds of w, with the node states' coordinates counted from `reference` (N+1, nx)."""
        problem = self.problem
        lower, upper = np.full(self.variables, -np.inf), np.full(self.variables, np.inf)
        entries = np.flatnonzero(self.coordinate >= 0)
        present = self.nodes[:, 0] >= 0
        place = self.nodes[present][:, self.coordinate[entries]]
        lower[place] = (problem.state_lower - reference[present])[:, entries]
        upper[place] = (problem.state_upper - reference[present])[:, entries]
        lower[self.controls], upper[self.controls] = problem.control_lower, problem.control_upper
        lower[self.parameters], upper[self.parameters] = problem.parameter_lower, problem.parameter_upper
        return lower, upper

    # -- non-zeros -----------------------------------------------------------------------------------------------------

    def _jacobian_blocks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(rows, columns) of the padded blocks, in the order in which their values are given."""
        problem = self.problem
        slot = np.concatenate(
            [np.full(problem.n, -1), np.repeat(np.arange(self.K), problem.nu), np.full(problem.n_p, -1)]
        )
        j = np.arange(self.K)[:, None]
        rows, blocks = self.rows, [(self.rows["defect"][:, :, None], self.local[:, None, :])]
        blocks.append((rows["defect"], self.nodes[1:]))
        for kind, seen in (("equality", slot <= j), ("inequality", slot <= j), ("inner_bounds", slot < j)):
            columns = np.where(seen, self.local[:, None, :], -1)
            blocks.append((rows[kind][..., None], columns[:, :, None, :]))
        blocks.append((rows["node_bounds"][:, :, None], self.nodes[:, None, :]))
        end = np.concatenate([self.nodes[-1], self.parameters])
        blocks += [(rows[kind][:, None], end[None]) for kind in CONSTRAINTS[2:]]
        return blocks

    def _hessian_blocks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Lower triangles of the intervals' blocks, of the end's, and of the parameters' own, which all of these share."""
        n_p = self.problem.n_p
        end = np.concatenate([self.nodes[-1], self.parameters])
        if not self.has_end_block:
            end = np.full_like(end, -1)
        blocks = []
        for index in (self.local, end[None]):
            size = index.shape[1]
            row, column = np.mgrid[:size, :size]
            kept = (row >= column) & (column < size - n_p)
            blocks.append((np.where(kept, index[:, :, None], -1), np.where(kept, index[:, None, :], -1)))
        row, column = np.meshgrid(self.parameters, self.parameters, indexing="ij")
        blocks.append((np.where(row >= column, row, -1), column))
        return blocks

    @property
    def has_end_block(self) -> bool:
        """Whether the cost, or in an exact Hessian a constraint, is non-linear in the last state."""
        kinds: tuple[str, ...] = ("terminal_residual", "terminal_cost")
        if self.exact:
            kinds += CONSTRAINTS[2:]
        return (self.exact and self.as_rows.size > 0) or any(getattr(self.problem, kind) is not None for kind in kinds)


def _structure(blocks: list[tuple[np.ndarray, np.ndarray]]) -> NonZeros:
    """The entries that have a row and a column."""
    pairs = [np.broadcast_arrays(*block) for block in blocks]
    rows = np.concatenate([row.ravel() for row, _ in pairs])
    columns = np.concatenate([column.ravel() for _, column in pairs])
    picked = np.flatnonzero((rows >= 0) & (columns >= 0))
    return NonZeros(rows[picked], columns[picked], picked, tuple(row.size for row, _ in pairs))
