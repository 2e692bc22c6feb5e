"""What certificates recompute of a motion: its rollout, by a program of its own that is compiled for one run (`Effort.QUICK`)."""

import numpy as np
from jaxtyping import Array, Float

from trajopt.dynamics.collision.narrowphase import pair_groups
from trajopt.dynamics.effort import Effort
from trajopt.dynamics.model import Model
from trajopt.dynamics.state import StepInfo
from trajopt.dynamics.system import State, System
from trajopt.problems import programs


def replay(system: System, x0: State, us: Float[Array, "T nu"]) -> tuple[State, StepInfo]:
    """States x_0..x_T and the infos of the T steps under the controls us, as `System.rollout`."""
    return programs.run(_rollout, None, system, x0, us, effort=Effort.QUICK)[0]


def _rollout(subject: None, system: System, x0: State, us: Float[Array, "T nu"]) -> tuple[State, StepInfo]:
    return system.rollout(x0, us)


def recorded(system: System, states: State, infos: StepInfo, us: Float[Array, "T nu"]) -> dict[str, Float[np.ndarray, "..."]]:
    """What a run saves of a motion: times (s), configurations, velocities, controls and impulses."""
    values = {"q": states.q, "v": states.v, "u": us, "impulse": infos.contacts.impulse}
    times = float(system.dt) * np.arange(len(values["q"]))
    return {"t": times} | {key: np.asarray(value) for key, value in values.items()}


def contact_quantities(infos: StepInfo) -> dict[str, float]:
    """How well the contacts of a motion were solved, and how many were left out."""
    return {
        "contact_residual": float(np.asarray(infos.residual).max()),
        "dropped_contacts": float(np.asarray(infos.dropped).sum()),
    }


def candidate_shapes(model: Model) -> tuple[int, ...]:
    """The first shape of every contact candidate, in the order of `collide`; nothing is computed."""
    top = model.topology
    return tuple(
        top.pairs[pair][0] for group in pair_groups(top) for pair in group.pairs for _ in range(group.candidates(model))
    )
