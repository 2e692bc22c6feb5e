"""Rigid-body dynamics and contact.

`System` steps a `Model` under a contact law and differentiates the step by a gradient mode. `rigid_body`, `collision`, `contact`
and `gradients` are the rooms behind it; their functions for users are exported here.
"""

from trajopt.dynamics.contact import (
    BoxedLCP,
    CompliantContact,
    ContactLaw,
    ForceLaw,
    NCPResult,
    NoContact,
    RelaxedContact,
    RigidContact,
    SmoothedContact,
    SpringDamperContact,
    Stage,
    kappa_schedule,
    solve_boxed_lcp,
    solve_ncp,
)
from trajopt.dynamics.contact.closures import closure_error
from trajopt.dynamics.damping import DampingWarning
from trajopt.dynamics.gradients import GRADIENTS, GradientMode, GradientOptions
from trajopt.dynamics.model import Model
from trajopt.dynamics.precision import PrecisionWarning
from trajopt.dynamics.rigid_body.aba import aba
from trajopt.dynamics.rigid_body.actuation import actuation_force
from trajopt.dynamics.rigid_body.configuration import (
    difference,
    integrate,
    integrate_jacobians,
    neutral,
    normalise,
    random_configuration,
)
from trajopt.dynamics.rigid_body.conventions import (
    base_velocity,
    from_base_velocity,
    from_mujoco_contact,
    from_pinocchio,
    to_mujoco_contact,
    to_pinocchio,
)
from trajopt.dynamics.rigid_body.crba import crba, forward_dynamics, mass_matrix
from trajopt.dynamics.rigid_body.derivatives import (
    forward_dynamics_derivatives,
    inertial_regressor,
    rnea_derivatives,
)
from trajopt.dynamics.rigid_body.energy import (
    centroidal_momentum,
    centroidal_momentum_matrix,
    kinetic_energy,
    potential_energy,
)
from trajopt.dynamics.rigid_body.gyroscopic import gyroscopic_correction
from trajopt.dynamics.rigid_body.kinematics import (
    centre_of_mass,
    com_jacobian,
    frame_jacobian,
    frame_jacobian_derivative,
    frame_placement,
    kinematics,
    point_jacobian,
)
from trajopt.dynamics.rigid_body.rnea import bias_forces, generalised_gravity, inverse_dynamics, rnea
from trajopt.dynamics.start import StartWarning
from trajopt.dynamics.state import Linearization, OutputSlope, State, StepInfo
from trajopt.dynamics.system import System

__all__ = [
    "GRADIENTS", "BoxedLCP", "CompliantContact", "ContactLaw", "DampingWarning", "ForceLaw", "GradientMode", "GradientOptions",
    "Linearization", "Model", "NCPResult", "NoContact", "OutputSlope", "PrecisionWarning", "RelaxedContact", "RigidContact",
    "SmoothedContact", "SpringDamperContact", "Stage", "StartWarning", "State", "StepInfo", "System", "aba",
    "actuation_force", "base_velocity",
    "bias_forces", "centre_of_mass", "centroidal_momentum", "centroidal_momentum_matrix", "closure_error", "com_jacobian", "crba",
    "difference", "forward_dynamics", "forward_dynamics_derivatives", "frame_jacobian", "frame_jacobian_derivative",
    "frame_placement", "from_base_velocity", "from_mujoco_contact", "from_pinocchio", "generalised_gravity",
    "gyroscopic_correction",
    "inertial_regressor", "integrate", "integrate_jacobians", "inverse_dynamics", "kappa_schedule", "kinematics",
    "kinetic_energy", "mass_matrix", "neutral", "normalise", "point_jacobian", "potential_energy", "random_configuration",
    "rnea", "rnea_derivatives", "solve_boxed_lcp", "solve_ncp", "to_mujoco_contact", "to_pinocchio",
]  # fmt: skip
