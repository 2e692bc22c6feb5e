"""What `solve_batch` returns: the answers of many samples side by side, each with its own status."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
from jaxtyping import Bool, Float, Int

from trajopt.problems.trajectory import Trajectory
from trajopt.result import Status, status_message, status_name


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSolution:
    """The answers of B samples of one problem, the sample being the first axis of every array.

    x (B, nx): the points, of optimal control controls row by row and parameters, as `Solution.x`. xs (B, T+1, nx), us (B, T, nu),
    parameters (B, np): the motions of optimal control, None otherwise. status: of each sample; success (B,): whether the
    quantities recomputed at its point are within the problem's tolerances. residuals: these quantities by name, (B,) each.
    iterations: accepted steps. covariance (B, n, n): of least squares by `GaussNewton`, not a number where x is not determined.
    gains (B, T, nu, n): feedback about the motions of iLQR.

    A sample that met a value that is not finite, or that no step improves, has its own status and disturbs no other.
    compile_time_s is that of the programs, which other batches of the same size share; wall_time_s of running them, all
    samples together.
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
