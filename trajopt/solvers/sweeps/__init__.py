"""Many solves at once, on processes of this machine or on whatever engine a cluster has: any `concurrent.futures.Executor`.

`tasks` says what is solved, `stream` hands it out, `worker` solves it elsewhere, `records` keeps what comes back; `processes` is
the executor for one machine.
"""

from trajopt.solvers.sweeps.comparison import Comparison, compare
from trajopt.solvers.sweeps.many import Outcome, iterate_tasks, solve_many, solve_tasks
from trajopt.solvers.sweeps.processes import Processes, WorkerDiedError, executor_for
from trajopt.solvers.sweeps.stream import BrokenSweepError
from trajopt.solvers.sweeps.tasks import Reference, Task, grid, reference

__all__ = [
    "BrokenSweepError",
    "Comparison",
    "Outcome",
    "Processes",
    "Reference",
    "Task",
    "WorkerDiedError",
    "compare",
    "executor_for",
    "grid",
    "iterate_tasks",
    "reference",
    "solve_many",
    "solve_tasks",
]
