"""The motion of a system under a feedback policy about another motion: what the forward pass of iLQR follows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trajopt.dynamics.compiled import compile_system, pack_parameters
from trajopt.dynamics.compiled_step import Policy, core_steps
from trajopt.dynamics.integrators import acts_by_impulses
from trajopt.dynamics.report import HEAD
from trajopt.dynamics.rigid_body.actuation import actuators
from trajopt.dynamics.rigid_body.configuration import difference
from trajopt.dynamics.state import State
from trajopt.dynamics.system import System


def follow_policy(
    system: System,
    x0: State,
    qs: Float[Array, "T nq"],
    vs: Float[Array, "T nv"],
    us: Float[Array, "T nu"],
    gains: Float[Array, "T nu n"],
    lower: Float[Array, " nu"],
    upper: Float[Array, " nu"],
) -> tuple[State, Float[Array, "T nu"], Float[Array, " T"]]:
    """The states after each step from x0, the controls u_t = clip(us_t + gains_t (x_t (-) (qs_t, vs_t)), lower, upper), and the
    residual of each step's contact solve.

    For laws without a contact state; inputs are not checked. Under the compiled core with plain motors it is one call; else a
    loop of steps. No derivative is defined.
    """
    model = system.stepped_model
    driven = actuators(model)
    if system.resolved_backend == "native" and driven.plain and acts_by_impulses(system.contact):
        compiled = compile_system(model, system.contact, system.integrator)
        if not compiled.given:
            parameters = pack_parameters(compiled, model, system.dt, system.mode.sharpness(system.kappa), system.rho)
            constants = jnp.concatenate([parameters, driven.arms.reshape(-1)])
            policy = Policy(jnp.concatenate([qs, vs], 1), gains, lower, upper)
            tau = jnp.zeros((us.shape[0], model.nv), us.dtype)
            y = core_steps(
                compiled, constants, x0.q, x0.v, tau, u=us, motors=us.shape[1], policy=policy, whole=False
            )
            assert y.u is not None
            return State(y.q, y.v), y.u, y.head[:, HEAD["residual"]]

    def body(x: State, given: tuple[Array, ...]) -> tuple[State, tuple[State, Array, Array]]:
        q, v, u_bar, K = given
        u = jnp.clip(u_bar + K @ jnp.concatenate([difference(model, q, x.q), x.v - v]), lower, upper)
        x_next, info = system.step(x, u)
        return x_next, (x_next, u, info.residual)

    return jax.lax.scan(body, x0, (qs, vs, us, gains))[1]
