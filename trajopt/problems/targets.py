r"""Targets of joints as what a search varies in place of controls: a stiff, damped joint follows a spline through few knots.

    u_t = clip(k_p (q*_t - q_t) - k_d v_t),    q*_{t,i} = q*_i + r(t) sum_m mirror_im s_m(phase_i(t))

$q*_i$ is the joint's angle in the initial state, $s_m$ a spline through `knots` equidistant values, over the horizon or, with a
`period`, over one period of a gait, in which phase_i(t) = t / period + shift_i; r(t) grows from 0 to 1 within `ramp`. The motion
that comes of it is one of controls alone: the u_t that the law gave along it.

A motor pushes against the ground by as much as its target is away, so that few numbers, the targets, make a stand, a jump or a
landing; held over tenths of a second, torques make a fall.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int

from trajopt.dynamics.model import Model
from trajopt.errors import OptionError, ShapeError
from trajopt.names import NamedOptions
from trajopt.options import check_options

INTERPOLATIONS = ("linear", "cubic")
RANGES = dict.fromkeys(("deviation", "reach", "period"), "(0, inf)") | dict.fromkeys(("stiffness", "damping", "ramp"), "[0, inf)")


@dataclasses.dataclass(frozen=True)
class JointTargets(NamedOptions):
    """Targets of joints that the sampling solvers search in place of controls: their option `parametrisation`.

    A stiff, damped joint follows a spline through few knots:

        u_t = clip(k_p (q*_t - q_t) - k_d v_t),    q*_{t,i} = q*_i + r(t) sum_m mirror_im s_m(phase_i(t))

    $q*_i$ is the joint's angle in the initial state, $s_m$ a spline through `knots` equidistant values over the horizon or,
    with a `period`, over one period of a gait.

    Options:
        knots: number of values of each spline.
        stiffness (N m/rad): $k_p$, a number, or one for each motor.
        damping (N m s/rad): $k_d$, a number, or one for each motor.
        interpolation: of the splines, "linear" or "cubic".
        deviation (rad): first standard deviation of the knots.
        reach (rad): largest distance of a knot from 0.
        mirror: (nu, m), which splines move a motor's joint, such as (1, 1) for a left and a right leg. Default: one for
            each motor.
        period (s): of a gait, whose phase is $phase_i(t) = t / period + shift_i$. Default: none, one spline over the horizon.
        shift: (nu,), shift of each joint's phase, in shares of the period.
        ramp (s): time within which r(t) grows from 0 to 1.

    Raises `OptionError` or `ShapeError`.
    """

    knots: int
    stiffness: Any = 80.0
    damping: Any = 1.0
    interpolation: str = "linear"
    deviation: float = 0.5
    reach: float = 1.2
    mirror: Sequence[Sequence[float]] | Float[np.ndarray, "nu m"] | None = None
    period: float | None = None
    shift: Sequence[float] | Float[np.ndarray, " nu"] | None = None
    ramp: float = 0.0

    def __post_init__(self) -> None:
        check_options(self, interpolation=INTERPOLATIONS, knots="[1, inf)" if self.period is None else "[3, inf)", **RANGES)
        if self.shift is not None and self.period is None:
            raise OptionError("JointTargets: shift is of the phase in a period; give period=... too")

    def check_alone(self, solver: str, knots: int | None, deviation: Any) -> None:
        """Raise `OptionError` where a solver is told of the controls' knots or deviations beside."""
        for key, value, own in (("knots", knots, "knots"), ("standard_deviation", deviation, "deviation")):
            if value is not None:
                raise OptionError(f"{solver}: {key} is that of the controls; give JointTargets({own}=...) instead")

    def modes(self, nu: int) -> Float[np.ndarray, "nu m"]:
        """`mirror`, or the identity. Raises `ShapeError`."""
        if self.mirror is None:
            return np.eye(nu)
        mirror = np.asarray(self.mirror, float)
        if mirror.ndim != 2 or len(mirror) != nu:
            raise ShapeError(f"JointTargets: mirror has shape {mirror.shape}; expected ({nu}, m), a row for each motor")
        return mirror

    def basis(self, steps: int, nu: int, dt: float) -> Float[np.ndarray, "T nu k"]:
        """How far each joint's target is from its first angle in each step, by each knot (knots times splines)."""
        mirror = self.modes(nu)
        times = dt * np.arange(steps)
        shift = np.zeros(nu) if self.shift is None else np.asarray(self.shift, float)
        if shift.shape != (nu,):
            raise ShapeError(f"JointTargets: shift has shape {shift.shape}; expected ({nu},), a number for each motor")
        if self.period is None:
            at = np.broadcast_to((times / max(times[-1], dt))[:, None], (steps, nu))
        else:
            at = (times[:, None] / self.period + shift) % 1.0
        splines = self._splines(at)
        if self.ramp > 0:
            splines = splines * np.minimum(times / self.ramp, 1.0)[:, None, None]
        return (splines[..., :, None] * mirror[None, :, None, :]).reshape(steps, nu, -1)

    def _splines(self, at: Float[np.ndarray, "T nu"]) -> Float[np.ndarray, "T nu knots"]:
        """The value of a spline at shares of its length, by each knot."""
        unit = np.eye(self.knots)
        if self.knots == 1:
            return np.ones((*at.shape, 1))
        if self.period is not None:
            places, unit = np.linspace(0.0, 1.0, self.knots + 1), np.concatenate([unit, unit[:1]])
        else:
            places = np.linspace(0.0, 1.0, self.knots)
        if self.interpolation == "linear":
            return np.stack([np.interp(at, places, column) for column in unit.T], -1)
        ends = "natural" if self.period is None else "periodic"
        return scipy.interpolate.CubicSpline(places, unit, bc_type=ends)(at)

    def feedback(self, model: Model) -> tuple[Float[np.ndarray, "nu nv"], Float[np.ndarray, "nu nv"]]:
        """(kp, kd) as matrices: u = -kp dq - kd v with dq the joints' distances from their targets, in the controls' units.

        Raises `OptionError` for motors that do not each drive one hinge or slide.
        """
        dofs, _ = driven(model)
        gear = np.asarray(model.actuation, float)[dofs, np.arange(len(dofs))]
        found = []
        for value, key in ((self.stiffness, "stiffness"), (self.damping, "damping")):
            gain = np.asarray(value, float)
            if gain.shape not in ((), (len(dofs),)):
                raise ShapeError(f"JointTargets: {key} has shape {gain.shape}; expected a number or ({len(dofs)},)")
            matrix = np.zeros((len(dofs), model.nv))
            matrix[np.arange(len(dofs)), dofs] = gain / gear
            found.append(matrix)
        return found[0], found[1]


def driven(model: Model) -> tuple[Int[np.ndarray, " nu"], Int[np.ndarray, " nu"]]:
    """(degree of freedom, coordinate) that each motor drives. Raises `OptionError` where a motor does not drive one hinge or
    slide."""
    arms = np.asarray(model.actuation)
    coordinates = np.asarray(model.topology.scalar_q_of_dof)
    dofs = np.abs(arms).argmax(0)
    alone = (arms != 0).sum(0) == 1
    if len(model.actuator_gain) or not (alone & (coordinates[dofs] >= 0)).all():
        raise OptionError(
            f"JointTargets: model '{model.name}' has actuators that are no plain motors of one hinge or slide each; search its "
            "controls, parametrisation='linear'"
        )
    return dofs, coordinates[dofs]
