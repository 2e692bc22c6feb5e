"""IPOPT's own derivative checker on the optimal control problems of the library.

Horizons are cut where a setting allows it. The checker perturbs the start by `point_perturbation_radius`, away from the kinks
of contacts that just touch, and compares every structural non-zero with a one-sided difference quotient. Its step is 1e-7: with
IPOPT's own, 1e-8, the rounding of a contact solve, 1e-12, makes errors of 1e-4.
"""

import inspect

import pytest

from trajopt import problems, solvers
from trajopt.problems import OptimalControlProblem, registry

SETTINGS = {
    "cartpole-swingup": {"steps": 20},
    "double-cartpole-swingup": {"steps": 20},
    "drone-takeoff": {},
    "catapult": {"steps": 60},
    "jump-worm": {"steps": 60},
    "half-cheetah": {"steps": 30},
    "hopper": {"steps": 30},
    "atlas-jump": {"dt": 0.02, "wait": 0.0},
    "go1-state-estimation": {"steps": 4},
    "push-box": {"duration": 0.4},
    "push-t": {"duration": 0.4},
}
# Sums of residuals, each of which is held against Ridders by itself (test_residuals.py).
OF_RESIDUALS = (
    "arm-obstacle", "atlas-jump-landing", "go1-backflip", "go1-climb", "go1-jump", "go1-trot", "h1-step", "half-cheetah-sprint",
    "hopper-hops", "hopper-step", "in-hand-rotation", "spinner", "two-arm-lift",
)  # fmt: skip
# Drone: at one node of the perturbed point the gap closes within 4.3e-8 m. Atlas: the cost curves by 1e5, which asks for short
# differences, and these for intervals of a single step: over five the rounding of the contact solves grows to 1e-11, which
# differences of 3e-8 see as 3e-4.
PERTURBATION = {"drone-takeoff": 1e-8, "atlas-jump": 3e-8}
INTERVAL = {"atlas-jump": 1}
# State estimation: away from its measurements the cost is 5e5, whose last place, 6e-11, is 6e-4 of a difference over 1e-7; and
# it curves by up to 1e8. Short differences see the one, long ones the other.
TOLERANCE = {"go1-state-estimation": 1e-3}


def test_every_optimal_control_problem_is_listed():
    """By the annotation of its factory, so that nothing is built here."""
    found = [
        name
        for name in registry.names()
        if inspect.signature(registry.entry(name).load()).return_annotation
        in (OptimalControlProblem, "OptimalControlProblem")
    ]
    assert sorted(found) == sorted([*SETTINGS, *OF_RESIDUALS])


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_derivatives_pass_the_checker(name):
    problem = problems.get(name, **{k: v for k, v in SETTINGS[name].items() if k in registry.settings(name)})
    checker = {
        "derivative_test": "first-order",
        "derivative_test_tol": TOLERANCE.get(name, 1e-4),
        "derivative_test_perturbation": PERTURBATION.get(name, 1e-7),
        "point_perturbation_radius": 1e-3,
    }
    options = dict(problem.defaults.options) if problem.defaults.solver == "MultipleShooting" else {}
    options |= {
        "interval": INTERVAL.get(name, options.get("interval", 5)),
        "ipopt_options": options.get("ipopt_options", {}) | checker,
        "hessian": "limited-memory",
        "damping": 0.0,
    }
    solver = solvers.MultipleShooting(**{k: v for k, v in options.items() if k != "max_iterations"})
    solution = solvers.solve(problem, solver, gradient="implicit", max_iterations=1)
    assert "Starting derivative checker for first derivatives" in solution.log
    assert "No errors detected by derivative checker" in solution.log, solution.log[-3000:]
