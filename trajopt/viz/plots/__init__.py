"""Static plots of a run: convergence, the motion, contacts, costs, estimates, and the comparison of solvers.

Figures are made without pyplot, so that nothing global changes and no display is needed; a plot writes a PNG and returns its
figure.
"""

from trajopt.viz.plots.axes import COLOURS, cost_axis, figure
from trajopt.viz.plots.comparison import best_feasible, comparison, convergence
from trajopt.viz.plots.contacts import contact_loads, contacts
from trajopt.viz.plots.costs import costs
from trajopt.viz.plots.estimation import estimation, uncertainty
from trajopt.viz.plots.labels import actuator_units, control_labels, coordinate_names, limbs
from trajopt.viz.plots.trajectory import joints, trajectory

__all__ = [
    "COLOURS",
    "actuator_units",
    "best_feasible",
    "comparison",
    "contact_loads",
    "contacts",
    "control_labels",
    "convergence",
    "coordinate_names",
    "cost_axis",
    "costs",
    "estimation",
    "figure",
    "joints",
    "limbs",
    "trajectory",
    "uncertainty",
]
