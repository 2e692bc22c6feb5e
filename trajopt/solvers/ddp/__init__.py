"""iLQR and DDP: the quadratic model along a motion, one iteration as one program, and the solvers. Other methods that minimise
over a motion (Gauss-Newton over a horizon, the moving horizon) take the iteration from here."""

from trajopt.solvers.ddp.ilqr import DDP, iLQR
from trajopt.solvers.ddp.iteration import Iteration
from trajopt.solvers.ddp.local_model import LocalModel, Modeller
from trajopt.solvers.ddp.replanning import GradientPlanner, Replanning
from trajopt.solvers.ddp.reports import Iterate, Report
from trajopt.solvers.ddp.state import DDPState

__all__ = [
    "DDP", "DDPState", "GradientPlanner", "Iterate", "Iteration", "LocalModel", "Modeller", "Replanning", "Report",
    "iLQR",
]  # fmt: skip
