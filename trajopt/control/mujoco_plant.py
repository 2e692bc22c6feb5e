"""MuJoCo as plant: another simulator with its own contact model, in the same coordinates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.errors import MissingExtraError, OptionError, UnknownNameError
from trajopt.names import NamedOptions, closest


class MujocoPlant(NamedOptions):
    """A `mujoco.MjModel` as plant: its contact model, its integrator, its options.

    Its qpos and qvel are `trajopt`'s q and v, its actuators take the problem's controls.

    Options:
        model: the `mujoco.MjModel`.
        dt (s): length of a tick. Default: the model's own time step.

    Raises `OptionError` for what is no such model or no step.
    """

    def __init__(self, model: Any, dt: float | None = None) -> None:
        mujoco = _imported()
        if not isinstance(model, mujoco.MjModel):
            raise OptionError(
                f"model is {type(model).__name__}; expected a mujoco.MjModel, or use MujocoPlant.from_file(path)"
            )
        if dt is not None:
            if not (np.isfinite(dt) and dt > 0):
                raise OptionError(f"dt is {dt}; expected a positive step in seconds")
            model.opt.timestep = dt
        if model.na:
            raise OptionError(
                f"the model has {model.na} actuators with a state, which no measured state holds; use plain motors"
            )
        self.model, self.data = model, mujoco.MjData(model)
        self.name = "MuJoCo"

    @classmethod
    def from_file(cls, path: str | os.PathLike, dt: float | None = None) -> MujocoPlant:
        """From an MJCF or URDF file, as MuJoCo reads it; `models.bundled_file` gives the path of a bundled model."""
        if not os.path.isfile(path):
            raise OptionError(f"path is {os.fspath(path)!r}: no such file; models.bundled_file(NAME) gives bundled ones")
        return cls(_imported().MjModel.from_xml_path(os.fspath(path)), dt)

    @property
    def dt(self) -> float:
        """Seconds of a tick."""
        return float(self.model.opt.timestep)

    @property
    def nx(self) -> int:
        """Length of a state."""
        return int(self.model.nq + self.model.nv)

    @property
    def nu(self) -> int:
        """Number of actuators."""
        return int(self.model.nu)

    @property
    def bodies(self) -> tuple[str, ...]:
        """Names of bodies that may be pushed."""
        return tuple(self.model.body(k).name for k in range(1, self.model.nbody))

    @property
    def state(self) -> Float[np.ndarray, " nx"]:
        """The state now."""
        return np.concatenate([self.data.qpos, self.data.qvel])

    def difference(self, q0: Float[np.ndarray, " nq"], q1: Float[np.ndarray, " nq"]) -> Float[np.ndarray, " nv"]:
        """q1 (-) q0 in tangent coordinates."""
        dq = np.zeros(self.model.nv)
        _imported().mj_differentiatePos(self.model, dq, 1.0, q0, q1)
        return dq

    def reset(self, x: Float[np.ndarray, " nx"]) -> None:
        """Go to a state, without the warm start of the contact solver that another motion left."""
        _imported().mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = x[: self.model.nq], x[self.model.nq :]

    def step(self, u: Float[np.ndarray, " nu"], forces: Mapping[str, Float[np.ndarray, "3"]]) -> None:
        """One `mj_step`."""
        self.data.ctrl[:] = u
        self.data.xfrc_applied[:] = 0.0
        for body, force in forces.items():
            if body not in self.bodies:
                raise UnknownNameError(f"{self.name} has no body '{body}'{closest(body, self.bodies)}")
            self.data.xfrc_applied[self.model.body(body).id, :3] = force
        _imported().mj_step(self.model, self.data)

    def step_with_force(self, u: Float[np.ndarray, " nu"], force: Float[np.ndarray, " nv"]) -> None:
        """One `mj_step` under a control and a generalised force, dual to the velocities, beside it."""
        self.data.ctrl[:] = u
        self.data.xfrc_applied[:] = 0.0
        self.data.qfrc_applied[:] = force
        _imported().mj_step(self.model, self.data)
        self.data.qfrc_applied[:] = 0.0


def _imported() -> Any:
    try:
        import mujoco
    except ImportError:
        raise MissingExtraError("MujocoPlant needs MuJoCo: pip install mujoco") from None
    return mujoco
