"""Tasks of bench_receding_horizon.py on Go1, and the peer: the same task whose rollouts and derivatives are MuJoCo's.

Horizons of 25 knots of 20 ms. Joint damping is explicit in a step of `System`, and Go1's is too large for 20 ms: dt
times damping is put beside the armature, M + dt D, which is the implicit damping of MuJoCo's Euler integrator.
"""

import dataclasses
import time
from typing import Self

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from measure import mujoco_model

from trajopt.control import tasks
from trajopt.dynamics import State, System
from trajopt.problems import OptimalControlProblem
from trajopt.problems import residuals as r

KNOTS, DT = 25, 0.02
FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
DIAGONAL = (0.0, 0.5, 0.5, 0.0)  # phase of each foot in a trot
FOOT_RADIUS = 0.0226  # m: a foot's centre above the ground it stands on
# Weight of the trot's forward velocity, per m/s. Postures hold against it, and the speed ends where both pull alike: with 4 at
# 0.46 and -0.37 m/s where 0.5 is asked, with 8 at 0.49 and -0.49.
FORWARDS = 8.0


def stand(system: System | None = None) -> OptimalControlProblem:
    """`trajopt mpc go1-stand`, with another system than its own."""
    problem = tasks.go1_stand()
    return problem if system is None else problem.replace(dynamics=system)


def trot(
    system: System, speed: float, seconds: float, *, period: float = 0.5, share: float = 0.4, clearance: float = 0.06,
    foot_weight: float = 20.0,
) -> OptimalControlProblem:  # fmt: skip
    """Walk at `speed` (m/s, forwards) with given phases: each foot is lifted for a `share` of each period of the gait."""
    still = stand()
    x, torque, q = still.as_state(still.x0), still.u0[0], still.x0[:19]
    times = DT * np.arange(round(seconds / DT) + KNOTS + 1)
    place = np.concatenate([[0.0, 0.0, 20.0], [5.0, 5.0, 2.0], np.full(12, 1.0)])
    rate = np.concatenate([[FORWARDS, 4.0, 1.0], [0.3, 0.3, 1.0], np.full(12, 0.02)])
    v = np.zeros(18)
    v[0] = speed
    feet = []
    for name, offset in zip(FEET, DIAGONAL, strict=True):
        phase = (times / period + offset) % 1.0
        lifted = (phase < share) & (times >= 0.0)
        height = FOOT_RADIUS + np.where(lifted, clearance * np.sin(np.pi * phase / share), 0.0)
        feet.append(
            r.Height(
                name, reference=height[:, None], weight=np.where(lifted, foot_weight, 0.0)[:, None], name=f"lift {name}"
            )
        )
    stage = sum([
        r.Posture(reference=q, weight=place), r.Velocity(reference=v, weight=rate),
        r.Control(reference=torque, weight=0.02), *feet,
    ])  # fmt: skip
    final = sum([r.Posture(reference=q, weight=2 * place), r.Velocity(reference=v, weight=2 * rate)])
    return OptimalControlProblem("trot", system, KNOTS, x, u0=torque, stage_residual=stage, terminal_residual=final)


class MujocoSystem(System):
    """A `System` whose steps are `mj_step` and whose derivatives are `mjd_transitionFD`, one-sided, on the same model file.

    `spent`: seconds inside MuJoCo's functions for derivatives, and for steps.
    """

    @classmethod
    def of(cls, system: System, name: str) -> Self:
        made, model = cls(system.model, system.dt, system.contact), mujoco_model(name, DT)
        vars(made).update(mj=model, data=mujoco.MjData(model), spent={"derivatives": 0.0, "steps": 0.0})
        return made

    def _set(self, q, v, u):
        self.data.qpos[:], self.data.qvel[:], self.data.ctrl[:] = q, v, u

    def _differences(self, q, v, u):
        """The next states, A and B of a batch of states."""
        m, d, n = self.mj, self.data, 2 * self.mj.nv
        shape = q.shape[:-1]
        flat = [np.asarray(a).reshape(-1, a.shape[-1]) for a in (q, v, u)]
        count = len(flat[0])
        qs, vs, A, B = (
            np.empty((count, m.nq)),
            np.empty((count, m.nv)),
            np.empty((count, n, n)),
            np.empty((count, n, m.nu)),
        )
        for k in range(count):
            self._set(*(a[k] for a in flat))
            begin = time.perf_counter()
            mujoco.mjd_transitionFD(m, d, 1e-6, False, A[k], B[k], None, None)
            self.spent["derivatives"] += time.perf_counter() - begin
            self._set(*(a[k] for a in flat))
            mujoco.mj_step(m, d)
            qs[k], vs[k] = d.qpos, d.qvel
        return tuple(a.reshape(*shape, *a.shape[1:]) for a in (qs, vs, A, B))

    def _follow(self, q, v, bar_q, bar_v, us, gains, lower, upper):
        m, d = self.mj, self.data
        q, v, bar_q, bar_v, us, gains, lower, upper = (
            np.asarray(a) for a in (q, v, bar_q, bar_v, us, gains, lower, upper)
        )
        self._set(q, v, us[0])
        dx, steps = np.empty(2 * m.nv), len(us)
        qs, vs, controls = np.empty((steps, m.nq)), np.empty((steps, m.nv)), np.empty(us.shape)
        begin = time.perf_counter()
        for k in range(steps):
            mujoco.mj_differentiatePos(m, dx[: m.nv], 1.0, bar_q[k], d.qpos)
            dx[m.nv :] = d.qvel - bar_v[k]
            controls[k] = d.ctrl[:] = np.clip(us[k] + gains[k] @ dx, lower, upper)
            mujoco.mj_step(m, d)
            qs[k], vs[k] = d.qpos, d.qvel
        self.spent["steps"] += time.perf_counter() - begin
        return qs, vs, controls

    def step(self, x, u, *, force=None, warm_start=None):
        q, v, *_ = self._called(x, u)
        return State(q, v), None

    def linearize(self, x, u, **_):
        q, v, A, B = self._called(x, u)
        return Linear(State(q, v), A, B)

    def _called(self, x, u):
        n, nu = 2 * self.nv, self.nu
        shapes = [jax.ShapeDtypeStruct(s, x.q.dtype) for s in ((self.nq,), (self.nv,), (n, n), (n, nu))]
        return jax.pure_callback(self._differences, tuple(shapes), x.q, x.v, u, vmap_method="broadcast_all")

    def follow(self, x0, qs, vs, us, gains, lower, upper):
        steps = us.shape[0]
        shapes = [jax.ShapeDtypeStruct((steps, k), us.dtype) for k in (self.nq, self.nv, self.nu)]
        q, v, u = jax.pure_callback(
            self._follow, tuple(shapes), x0.q, x0.v, qs, vs, us, gains, lower, upper, vmap_method="sequential"
        )
        return State(q, v), u


@dataclasses.dataclass(frozen=True)
class Linear:
    """What `linear_dynamics` reads of a linearisation."""

    x_next: State
    A: jnp.ndarray
    B: jnp.ndarray


def peer_system() -> Self:
    return MujocoSystem.of(stand().system, "go1")
