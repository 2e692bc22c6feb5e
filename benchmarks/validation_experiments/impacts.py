r"""Impacts: energy of a bouncing ball, heights after a bounce, collisions of two balls.

bouncing-ball (JaxSim thesis, 7.5.1): 0.1 kg, radius 0.1 m, 1 m above the floor, thrown with (2, 0, -1) m/s. In flight energy is
constant; it falls at impacts, by friction while the ball slides, and stays while it rolls. Whatever the friction, the angular
momentum about a line in the floor stays, so that it ends rolling at 5/7 of its horizontal speed.

restitution: dropped from 0.3 m the ball rises to e^2 of the height before.

two-balls: central impact with the restitution e, v1+ = v1 - (1 + e) m2 / (m1 + m2) (v1 - v2), v2+ likewise.
"""

import jax.numpy as jnp
import numpy as np

from trajopt.dynamics import CompliantContact, RigidContact, State, System
from trajopt.viz.plots import COLOURS, figure
from validation_experiments import scenes
from validation_experiments.report import Outcome, save, write_table

MASS, RADIUS = 0.1, 0.1
THROWN = scenes.at(z=1.0 + RADIUS, v=(2.0, 0, -1.0, 0, 0, 0))


def thrown_ball(law, dt: float, seconds: float, g: float = scenes.THESIS, e: float = 0.0):
    """(time, height of the lowest point, v, energy, normal force, solved) of the ball of the thesis."""
    ball = scenes.with_restitution(scenes.model(scenes.ball_xml(RADIUS, MASS)), e)
    ball = ball.replace(gravity=jnp.asarray([0, 0, -g]))
    integrator = "rk4" if isinstance(law, CompliantContact) else "semi-implicit"
    system = System(ball, dt=dt, contact=law, integrator=integrator)
    xs, solved, _, impulse = scenes.rollout(system, THROWN, round(seconds / dt))
    q, v = np.asarray(xs.q), np.asarray(xs.v)
    spin = 0.4 * MASS * RADIUS**2
    energy = 0.5 * MASS * (v[:, :3] ** 2).sum(1) + 0.5 * spin * (v[:, 3:] ** 2).sum(1) + MASS * g * (q[:, 2] - RADIUS)
    force = np.asarray(impulse)[:, 0] / dt
    return dt * np.arange(1, len(q) + 1), q[:, 2] - RADIUS, v, energy, np.linalg.norm(force, axis=1), np.asarray(solved)


def flights(force) -> list[np.ndarray]:
    """Indices of the states in flight, one array for each flight: neither this step nor the next has a force."""
    free = np.flatnonzero((force == 0) & (np.append(force[1:], 0) == 0))
    return [part for part in np.split(free, np.flatnonzero(np.diff(free) > 1) + 1) if len(part) > 2]


def bouncing_ball() -> Outcome:
    """Both laws; the compliant one with the parameters, scheme and step of the thesis."""
    g, runs = scenes.THESIS, {}
    runs["CompliantContact, RK4, 0.1 ms"] = thrown_ball(CompliantContact(), 1e-4, 3.0)
    for dt in (1e-3, 1e-4):
        runs[f"RigidContact, e = 0.6, {1e3 * dt:g} ms"] = thrown_ball(RigidContact(), dt, 3.0, e=0.6)
    made, axes = figure(3, 1, width=7.5, height=2.1)
    rows, flight, rolling = [], {}, {}
    for k, (name, (t, z, v, energy, force, solved)) in enumerate(runs.items()):
        assert solved.all()
        for ax, values in zip(axes[:, 0], (z, energy, force), strict=True):
            ax.plot(t, values, color=COLOURS[k], label=name, linewidth=1.1, linestyle=("-", "-", "--")[k])
        # Semi-implicit Euler keeps m v^2 / 2 + m g (z - v dt / 2) in flight: the height in the middle of the step.
        middle = energy if "RK4" in name else energy - 0.5 * MASS * g * (t[1] - t[0]) * v[:, 2]
        flight[name] = max((np.ptp(middle[part]) for part in flights(force)), default=0.0)
        rolling[name] = v[-1, 0] / (10 / 7) - 1
        rows.append([
            name, len(flights(force)), f"{flight[name]:.0e}", f"{energy[-1]:.4f}", f"{0.7 * MASS * (10 / 7) ** 2:.4f}",
            f"{v[-1, 0]:.6f}", f"{10 / 7:.6f}",
        ])  # fmt: skip
    for ax, label in zip(axes[:, 0], ("height, m", "energy, J", "contact force, N"), strict=True):
        ax.set_ylabel(label)
    axes[2, 0].set_yscale("symlog", linthresh=1.0)
    axes[2, 0].set_xlabel("time, s")
    axes[0, 0].legend(frameon=False, fontsize=8)
    save(made, "bouncing-ball")
    header = ["law", "flights", "energy change within a flight, J", "energy after 3 s, J", "closed form, rolling",
              "speed after 3 s, m/s", "closed form, 5/7 of 2 m/s"]  # fmt: skip
    write_table("impacts", "bouncing-ball", header, rows)
    compliant, coarse, fine = (abs(value) for value in rolling.values())
    return Outcome([
        ("energy within a flight", "constant", f"{max(flight.values()):.0e} J"),
        ("speed of rolling, hard contact", "5/7 of the speed thrown", f"{coarse:.0e} relative at 1 ms, {fine:.0e} at 0.1 ms"),
        ("the same, compliant contact", "5/7 of the speed thrown", f"{compliant:.0e} relative"),
    ])  # fmt: skip


def bounces(e: float, dt: float, height: float = 0.3, seconds: float = 1.0):
    """(heights of release and after each bounce, height over time, -v+ / v- of each impact, all solved)."""
    ball = scenes.with_restitution(scenes.model(scenes.ball_xml()), e)
    system = System(ball, dt=dt, contact=RigidContact())
    xs, solved, *_ = scenes.rollout(system, scenes.at(z=height + 0.1), round(seconds / dt))
    z, v = np.asarray(xs.q)[:, 2] - 0.1, np.asarray(xs.v)[:, 2]
    impacts = np.flatnonzero((v[1:] > 0) & (v[:-1] < 0)) + 1
    tops = np.array([height] + [z[a:b].max() for a, b in zip(impacts, [*impacts[1:], None])])
    return tops, z, -v[impacts] / v[impacts - 1], bool(np.asarray(solved).all())


def landing_error(e: float, before, dt: float):
    """Bound on the height after a bounce from `before`: an impact may be taken a step early, |v| dt above the ground, and
    the ball leaves from a step further."""
    return (1 + e) * np.sqrt(2 * scenes.EARTH * before) * dt


def restitution() -> Outcome:
    made, axes = figure(1, 1, width=7.5, height=2.8)
    rows, ratio, worst = [], 0.0, 0.0
    for k, e in enumerate((0.5, 0.8, 1.0)):
        cells = [f"{e}"]
        for dt in (1e-3, 1e-4):
            tops, z, speeds, solved = bounces(e, dt)
            assert solved
            before, after = tops[:2]
            cells += [f"{after:.6f}", f"{abs(after - e**2 * before):.1e}", f"{landing_error(e, before, dt):.1e}"]
            ratio = max(ratio, np.abs(speeds[:1] - e).max())
            worst = max(worst, abs(after - e**2 * before) / landing_error(e, before, dt))
        axes[0, 0].plot(1e-4 * np.arange(1, len(z) + 1), z, color=COLOURS[k], label=f"e = {e}", linewidth=1.1)
        for count in range(1, 4):
            axes[0, 0].axhline(0.3 * e ** (2 * count), color=COLOURS[k], linewidth=0.7, linestyle=":",
                               label="0.3 m times e², e⁴, e⁶" if (k, count) == (0, 1) else None)  # fmt: skip
        rows.append([cells[0], f"{0.3 * e**2:.6f}", *cells[1:]])
    axes[0, 0].set_xlabel("time, s")
    axes[0, 0].set_ylabel("height, m")
    made.legend(frameon=False, fontsize=8, loc="outside right center")
    save(made, "restitution")
    header = ["e", "e² 0.3 m", "1 ms: height, m", "error, m", "bound, m", "0.1 ms: height, m", "error, m", "bound, m"]
    write_table("impacts", "restitution", header, rows)
    return Outcome([
        ("ratio of speeds at an impact", "e", f"{ratio:.0e}"),
        ("height after a bounce", "e² of the one before", f"{100 * worst:.0f} % of (1 + e) v dt"),
    ])  # fmt: skip


def meeting_balls(e: float, mass: float, v1: float, v2: float, dt: float = 1e-3):
    """(velocities after the impact, solved) of balls of 1 kg and `mass` that meet centrally; a third body looks on."""
    scene = scenes.with_restitution(scenes.model(scenes.MEETING), e)
    second = np.flatnonzero(np.asarray(scene.mass) == 1.0)[1]  # its inertia does not matter in a central impact
    system = System(scene.replace(mass=jnp.asarray(scene.mass).at[second].set(mass)), dt=dt, contact=RigidContact())
    v = np.zeros(18)
    v[0], v[6] = v1, v2
    xs, solved, *_ = scenes.rollout(system, State(system.initial_state().q, jnp.asarray(v)), 20)
    after = np.asarray(xs.v)[-1]
    return np.array([after[0], after[6]]), bool(np.asarray(solved).all())


def central_impact(e: float, mass: float, v1: float, v2: float) -> np.ndarray:
    """Velocities after a central impact of 1 kg and `mass`, in closed form."""
    shared, closing = (v1 + mass * v2) / (1 + mass), v1 - v2
    return np.array([shared - e * mass / (1 + mass) * closing, shared + e / (1 + mass) * closing])


def two_balls() -> Outcome:
    ratios, rows, worst = np.logspace(-3, 3, 13), [], 0.0
    made, axes = figure(1, 1, width=7.5, height=2.8)
    fine = np.logspace(-3, 3, 200)
    for k, e in enumerate((1.0, 0.5, 0.0)):
        found, exact = [], []
        for mass in ratios:
            v, solved = meeting_balls(e, mass, 2.0, -0.5)
            assert solved
            found.append(v)
            exact.append(central_impact(e, mass, 2.0, -0.5))
        found, exact = np.array(found), np.array(exact)
        curve = np.array([central_impact(e, mass, 2.0, -0.5) for mass in fine])
        for j, style in enumerate(("-", "--")):
            axes[0, 0].plot(fine, curve[:, j], style, color=COLOURS[k], linewidth=0.9)
            axes[0, 0].plot(ratios, found[:, j], "os"[j], color=COLOURS[k], markersize=4,
                            label=f"ball {j + 1}, e = {e}")  # fmt: skip
        worst = max(worst, np.abs(found - exact).max())
        rows.append([e, *(f"{a:.3f}, {b:.3f}" for a, b in found[[0, 6, 12]]), f"{np.abs(found - exact).max():.0e}"])
    axes[0, 0].set_xscale("log")
    axes[0, 0].set_xlabel("mass of ball 2 over mass of ball 1")
    axes[0, 0].set_ylabel("velocity after impact, m/s\n(lines: closed form)")
    axes[0, 0].legend(frameon=False, fontsize=8, ncols=3)
    save(made, "two-balls")
    header = ["e", "v1+, v2+ (m/s) at a mass ratio of 0.001", "of 1", "of 1,000", "largest error of 13 ratios, m/s"]
    write_table("impacts", "two-balls", header, rows)
    return Outcome([("velocities after impact, mass ratios 1e-3 to 1e3", "closed form", f"{worst:.0e} m/s")])
