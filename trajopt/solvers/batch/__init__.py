"""Many starts of one problem in one compiled program (`solve_batch`): iterations as pure functions, mapped over samples."""

from trajopt.solvers.batch.base import solve_batch
from trajopt.solvers.batch.solution import BatchSolution

__all__ = ["BatchSolution", "solve_batch"]
