"""Which implementation the steps of a `System` take: the compiled core of CPUs, or JAX.

| backend | steps |
|---|---|
| `jax` | the JAX implementation: every law, integrator and device |
| `native` | the compiled core (`trajopt.native`): the same function on CPUs, for what `reason_not_covered` does not name |
| `auto` | `native` where it covers the system and is built for this processor, else `jax` |

Under forces that JAX evaluates, those of laws at force level, the core still moves the bodies with "auto" (`stepped_by`).
"""

from __future__ import annotations

import functools
import os
import warnings

import jax
import numpy as np

from trajopt import native
from trajopt.dynamics.contact.laws import NoContact
from trajopt.dynamics.contact.laws.base import ContactLaw, Law
from trajopt.dynamics.contact.step import DerivativeRule
from trajopt.dynamics.integrators import EXPLICIT
from trajopt.dynamics.model import Model
from trajopt.errors import OptionError
from trajopt.names import closest

BACKENDS = ("auto", "native", "jax")
FREE = NoContact()  # the law of bodies that forces of JAX alone act on
FREE_MOTION = "free motion"  # what `stepped_by` says where the core moves the bodies under forces of JAX
MOST_CONTACTS = 128  # in the problem of one step, as in native/topology.h
VARIABLE = "TRAJOPT_BACKEND"  # environment variable: what "auto" becomes


def resolve_backend(asked: str, model: Model, law: Law, integrator: str) -> tuple[str, str]:
    """("native" or "jax", why not the compiled core: empty where it is used or nobody asked for it).

    `asked` is one of `BACKENDS`; "auto" leaves the choice to the environment variable TRAJOPT_BACKEND. Raises `OptionError` for
    another name, and where "native" is asked for and does not cover the system.
    """
    if asked not in BACKENDS:
        raise OptionError(f"backend is {asked!r}{closest(str(asked), BACKENDS)}")
    wanted = os.environ.get(VARIABLE, "auto") if asked == "auto" else asked
    if wanted not in BACKENDS:
        raise OptionError(f"{VARIABLE} is '{wanted}'{closest(wanted, BACKENDS)}")
    if wanted == "jax":
        return "jax", ""
    reason = reason_not_covered(model, law, integrator)
    if reason is not None and wanted == "native":
        raise OptionError(f"backend is 'native', but {reason}; use backend='auto' or 'jax'")
    if reason is not None and reason == native.reason() and native.missing():
        _say_what_it_costs(reason)
    return ("native", "") if reason is None else ("jax", reason)


def stepped_by(backend: str, reason: str, model: Model, law: Law, integrator: str) -> str:
    """What takes the steps, from `resolve_backend`'s answer: "native", "jax", or `FREE_MOTION`.

    Forces of a law at force level are explicit functions of the state, by JAX; the bodies move under them as freely as the core
    moves them, unless JAX is asked for.
    """
    by_forces = reason and not law.solves_impulses and integrator not in EXPLICIT
    return FREE_MOTION if by_forces and reason_not_covered(model, FREE, integrator) is None else backend


def reason_not_covered(model: Model, law: Law, integrator: str) -> str | None:
    """Why a step of this model under this law does not go through the compiled core; None where it does."""
    dtype = np.dtype(model.mass.dtype)
    if jax.default_backend() != "cpu":
        return f"the compiled core is for CPUs, and JAX's device is a {jax.default_backend()}"
    if law.not_compiled is not None:
        return law.not_compiled
    if integrator in EXPLICIT and law.acts:
        return f"integrator='{integrator}' takes forces that are explicit functions of the state"
    if dtype not in (np.float64, np.float32):
        return f"numbers are {dtype.name}; the compiled core takes float64 and float32"
    if law.relaxed and law.contact_rows(model) > MOST_CONTACTS:
        return f"model '{model.name}' has {law.contact_rows(model)} contacts that act; the compiled core takes {MOST_CONTACTS}"
    if not model.topology.n_nodes:
        return "the model has no moving body"
    return None if native.available() else native.reason()


def differentiated_law(rule: DerivativeRule | None, law: ContactLaw, integrator: str) -> ContactLaw | None:
    """The law whose closed form in the compiled core is the derivative of `rule` in a step under `law`; None where none is."""
    if integrator in EXPLICIT:  # free motion is smooth: every mode's derivative is the exact one
        return law
    other = None if rule is None else rule.differentiated_law(law)
    return None if other is None or other.not_compiled is not None else other


@functools.cache
def _say_what_it_costs(reason: str) -> None:
    """Once in a process."""
    warnings.warn(
        f"steps are taken by JAX, ten to a hundred times slower than by the compiled core: {reason}. "
        f"{VARIABLE}=jax asks for JAX and says nothing",
        stacklevel=5,
    )
