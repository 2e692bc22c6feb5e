r"""Drift of momentum and energy without gravity: the astronaut experiment (JaxSim thesis, 8.2.2).

A floating humanoid, no gravity, springs or losses. Ten random torques on every joint, uniform within 0.5 N m, held 0.1 s each:
its momentum stays zero. Then 100 s without torques: its energy stays. The thesis takes iCub with 23 joints; here it is the
bundled humanoid with 21, in forward Euler and RK4.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from trajopt import load_model
from trajopt.dynamics import NoContact, State, System
from trajopt.dynamics.rigid_body.energy import centroidal_momentum, kinetic_energy
from trajopt.viz.plots import COLOURS, figure
from validation_experiments.report import Outcome, save, write_table

TORQUE, PHASES = 0.5, 10
STEPS_PER_TORQUE = {1e-3: 100, 1e-2: 10, 1e-1: 1}
SAMPLES = 200  # of the energy over the second part


@functools.cache
def astronaut(integrator: str) -> System:
    """The humanoid without gravity, springs and losses."""
    model = load_model("humanoid").to_device()
    none = {name: jnp.zeros_like(getattr(model, name)) for name in ("gravity", "damping", "stiffness", "frictionloss")}
    return System(model.replace(**none), 1e-2, contact=NoContact(), integrator=integrator)


@functools.partial(jax.jit, static_argnums=(3, 4))
def drift(system: System, x: State, forces, each: int, samples: int):
    """((P, 6) momentum after each of the forces (P, nv), held for `each` steps, (P, samples) kinetic energy, final state)."""

    def step(x, force):
        return system.step(x, jnp.zeros(system.nu), force=force)[0]

    def sample(x, force):
        x = jax.lax.fori_loop(0, each // samples, lambda _, x: step(x, force), x)
        return x, kinetic_energy(system.model, x.q, x.v)

    def phase(x, force):
        x, energy = jax.lax.scan(lambda x, _: sample(x, force), x, None, length=samples)
        return x, (centroidal_momentum(system.model, x.q, x.v), energy)

    x, (momentum, energy) = jax.lax.scan(phase, x, forces)
    return momentum, energy, x


def torques(system: System, seed: int = 0) -> np.ndarray:
    """(PHASES, nv) random torques on all joints, none on the base."""
    forces = np.zeros((PHASES, system.nv))
    forces[:, 6:] = np.random.default_rng(seed).uniform(-TORQUE, TORQUE, size=(PHASES, system.nv - 6))
    return forces


def momentum_and_energy(integrator: str, dt: float, seconds: float = 100.0):
    """(largest momentum component after 1 s, kinetic energy then, (SAMPLES,) kinetic energy over the next `seconds`)."""
    system = dataclasses.replace(astronaut(integrator), dt=dt)
    each = STEPS_PER_TORQUE[dt]
    momentum, energy, x = drift(system, system.initial_state(), jnp.asarray(torques(system)), each, 1)
    start = float(energy[-1, -1])
    rest = jnp.zeros((1, system.nv))
    _, later, _ = drift(system, x, rest, round(seconds / dt), SAMPLES)
    return float(np.abs(momentum[-1]).max()), start, np.asarray(later)[0]


def cell(value: float) -> str:
    return f"{value:.0e}" if np.isfinite(value) and value < 1e3 else "diverges"


def run() -> Outcome:
    seconds = 100.0
    made, axes = figure(1, 2, width=4.6, height=3.0)
    steps, rows, kept = tuple(STEPS_PER_TORQUE), [], {}
    for k, integrator in enumerate(("euler", "rk4")):
        momenta, energies = [], []
        for j, dt in enumerate(steps):
            momentum, start, energy = momentum_and_energy(integrator, dt, seconds)
            change = np.abs(energy - start)
            momenta.append(momentum)
            energies.append((change / start).max())
            t = seconds / SAMPLES * np.arange(1, SAMPLES + 1)
            shown = np.where(np.isfinite(change) & (change < 1e6), np.maximum(change, 1e-18), np.nan)
            label = f"{integrator}, {1e3 * dt:g} ms"
            axes[0, 1].semilogy(t, shown, color=COLOURS[k], linestyle=("-", "--", ":")[j], label=label, linewidth=1.1)
            kept[integrator, dt] = momentum, energies[-1]
        axes[0, 0].loglog([1e3 * dt for dt in steps], momenta, "o-", color=COLOURS[k])
        order = np.log10(momenta[1] / momenta[0])
        rows.append([integrator, *(cell(a) for a in momenta), f"{order:.1f}", *(cell(a) for a in energies)])
    axes[0, 0].set_xlabel("time step, ms")
    axes[0, 0].set_ylabel("momentum after 1 s, N s and N m s")
    axes[0, 1].set_xlabel("time, s")
    axes[0, 1].set_ylabel("change of energy, J")
    made.legend(*axes[0, 1].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right center")
    save(made, "drift")
    header = [
        "integrator",
        *(f"momentum, {1e3 * dt:g} ms" for dt in steps),
        "order",
        *(f"energy, {1e3 * dt:g} ms" for dt in steps),
    ]
    write_table("drift", "drift", header, rows)
    return Outcome([
        ("momentum of a floating humanoid after 1 s, RK4, 1 ms", "0", f"{kept['rk4', 1e-3][0]:.0e} N s, N m s"),
        ("its energy over 100 s, RK4, 1 ms", "constant", f"{kept['rk4', 1e-3][1]:.0e} relative"),
    ])  # fmt: skip
