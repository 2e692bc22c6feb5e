"""What acts where shapes meet: the contact laws (`laws`), the rows of the contact problem (`rows`), the law as an equation
(`ncp`), the step assembled and solved (`step`), and problems on plain arrays (`arrays`). `solve` holds the algorithms."""

from trajopt.dynamics.contact.arrays import NCPResult, solve_boxed_lcp, solve_ncp
from trajopt.dynamics.contact.laws import (
    BoxedLCP,
    CompliantContact,
    ContactLaw,
    ForceLaw,
    NoContact,
    RelaxedContact,
    RigidContact,
    SmoothedContact,
    SpringDamperContact,
    kappa_schedule,
)
from trajopt.dynamics.contact.solve.ladder import Stage

__all__ = [
    "BoxedLCP", "CompliantContact", "ContactLaw", "ForceLaw", "NCPResult", "NoContact", "RelaxedContact", "RigidContact",
    "SmoothedContact", "SpringDamperContact", "Stage", "kappa_schedule", "solve_boxed_lcp", "solve_ncp",
]  # fmt: skip
