"""The contact laws: options with behaviour. At velocity level a law is solved for impulses, at force level it gives forces;
`base` says what every law answers for, `forces` evaluates those at force level."""

from trajopt.dynamics.contact.laws.base import (
    ContactLaw,
    Law,
    Need,
    NormalOffset,
    Softening,
    SolverOptions,
)
from trajopt.dynamics.contact.laws.compliant import CompliantContact, SpringDamperContact
from trajopt.dynamics.contact.laws.forces import ForceLaw, Forces, PointForces, forces, gives_forces
from trajopt.dynamics.contact.laws.relaxed import RHO_MEANING, RelaxedContact, check_rho, resolved_rho
from trajopt.dynamics.contact.laws.rigid import BoxedLCP, NoContact, RigidContact
from trajopt.dynamics.contact.laws.smoothed import (
    R_FACTORS,
    SmoothedBox,
    SmoothedContact,
    check_kappa,
    kappa_schedule,
)

__all__ = [
    "RHO_MEANING", "R_FACTORS", "BoxedLCP", "CompliantContact", "ContactLaw", "ForceLaw", "Forces", "Law", "Need",
    "NoContact", "NormalOffset", "PointForces", "RelaxedContact", "RigidContact", "SmoothedBox", "SmoothedContact", "Softening",
    "SolverOptions", "SpringDamperContact", "check_kappa", "check_rho", "forces", "gives_forces",
    "kappa_schedule", "resolved_rho",
]  # fmt: skip
