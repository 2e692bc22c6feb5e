"""Single and multiple shooting: a motion as a nonlinear program, its sparsity pattern and functions, and IPOPT."""

from trajopt.solvers.shooting.multiple import MultipleShooting
from trajopt.solvers.shooting.nlp import Shooting
from trajopt.solvers.shooting.single import SingleShooting

__all__ = ["MultipleShooting", "Shooting", "SingleShooting"]
