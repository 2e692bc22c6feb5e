"""What `solve_batch` returns: the answers of many samples side by side, each with its own status."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from trajopt.problems.trajectory import Trajectory
from trajopt.result import Status, status_message, status_name
from trajopt.solvers.loop.contract import status_of, verdict


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSolution:
    """The answers of B samples of one problem, the sample being the first axis of every array.

    A sample that met a value that is not finite, or that no step improves, has its own status and disturbs no other.

    Attributes:
        problem: name of the problem.
        solver: name of the solver.
        gradient: gradient mode.
        status: `Status` of each sample; `statuses` has their names.
        success: (B,), whether the quantities recomputed at the point are within the problem's tolerances.
        x: the points (B, nx); of optimal control the controls row by row and the parameters, as in `Solution.x`.
        cost: costs at the points, (B,).
        initial_cost: costs at the guesses, (B,).
        violation: (B,), the largest of bounds, dynamics and constraints.
        iterations: (B,), accepted steps.
        residuals: recomputed quantities by name, (B,) each.
        compile_time_s (s): of the programs, which other batches of the same size share.
        wall_time_s (s): of running them, all samples together.
        xs: states (B, T+1, nx) of optimal control, None otherwise.
        us: controls (B, T, nu) of optimal control, None otherwise.
        parameters: free parameters (B, np) of optimal control, None otherwise.
        covariance: (B, n, n), of least squares by `GaussNewton`; not a number where x is not determined.
        gains: (B, T, nu, n), feedback about the motions of iLQR.
    """

    problem: str
    solver: str
    gradient: str
    status: tuple[Status, ...]
    success: Bool[np.ndarray, " b"]
    x: Float[np.ndarray, "b nx"]
    cost: Float[np.ndarray, " b"]
    initial_cost: Float[np.ndarray, " b"]
    violation: Float[np.ndarray, " b"]
    iterations: Int[np.ndarray, " b"]
    residuals: dict[str, Float[np.ndarray, " b"]]
    compile_time_s: float
    wall_time_s: float
    xs: Float[np.ndarray, "b T1 nx"] | None = None
    us: Float[np.ndarray, "b T nu"] | None = None
    parameters: Float[np.ndarray, "b np"] | None = None
    covariance: Float[np.ndarray, "b n n"] | None = None
    gains: Float[np.ndarray, "b T nu n"] | None = None

    def __len__(self) -> int:
        return len(self.status)

    @property
    def statuses(self) -> tuple[str, ...]:
        """Names of the statuses, one for each sample."""
        return tuple(status_name(status) for status in self.status)

    @property
    def best(self) -> int:
        """The successful sample of the lowest cost; without one, the lowest cost among those of the least violation."""
        cost = np.where(np.isfinite(self.cost), self.cost, np.inf)
        if self.success.any():
            return int(np.argmin(np.where(self.success, cost, np.inf)))
        return int(np.lexsort((cost, self.violation))[0])

    def point(self, sample: int) -> Float[np.ndarray, " nx"] | Trajectory:
        """The point of one sample, from which `solvers.solve(problem, solver, x0=...)` goes on."""
        if self.xs is None or self.us is None:
            return self.x[sample]
        p = np.zeros(0, self.x.dtype) if self.parameters is None else self.parameters[sample]
        return Trajectory(self.xs[sample], self.us[sample], p)

    def describe(self) -> str:
        """How many samples ended with which status, the range of the costs, and the times."""
        counts = Counter(self.statuses)
        lines = [
            f"{count:5d} {name}: {status_message(self.status[self.statuses.index(name)])}"
            for name, count in counts.most_common()
        ]
        cost = self.cost[self.success]
        if cost.size:
            lines.append(
                f"costs of the {cost.size} successful samples: {cost.min():.6g} to {cost.max():.6g}, median {np.median(cost):.6g}"
            )
        each = 1e3 * self.wall_time_s / len(self)
        lines.append(f"compiled in {self.compile_time_s:.2f} s, ran {self.wall_time_s:.3f} s: {each:.3g} ms a sample")
        return "\n".join(lines)


def verdicts(
    problems: Sequence[Any], codes: Int[np.ndarray, " b"], missing: Sequence[Sequence[str]], costs: Float[np.ndarray, " b"],
    lacking: Sequence[Callable[[], bool] | None] | None = None,
) -> tuple[tuple[Status, ...], Bool[np.ndarray, " b"]]:
    """(status, success) of each sample, as `verdict` says: missing: what falls short at its point; lacking: its lack of
    influence."""
    lacking = [None] * len(problems) if lacking is None else lacking
    samples = zip(problems, map(status_of, codes.tolist()), missing, costs.tolist(), lacking, strict=True)
    found = [verdict(*each) for each in samples]
    statuses, success = zip(*found, strict=True)
    return tuple(statuses), np.array(success)


def by_name(rows: Sequence[dict[str, float]]) -> dict[str, Float[np.ndarray, " b"]]:
    """What was recomputed at each sample's point, by name."""
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}
