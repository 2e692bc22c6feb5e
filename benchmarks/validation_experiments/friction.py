r"""Coulomb friction: a box pushed in steps, the angle at which boxes slip, and balls that roll or slide.

sliding-box (JaxSim thesis, 7.5.2): 1 kg, 1.5 x 1 x 0.5 m, mu = 0.5 on the floor, pushed at its centre of mass. The thesis shows
its forces in a figure only; here they rise by 1.2 N every half second from t = 0.5 s and end at 3.5 s. Below mu m g = 4.9 N the
box stays; above, it accelerates by f / m - mu g; without force it stops.

incline-angle: a box on an incline stays where tan(angle) < mu and accelerates by g (sin - mu cos) beyond. A ball rolls with
5/7 g sin where tan(angle) < 7/2 mu, and slides with g (sin - mu cos) beyond.
"""

import jax.numpy as jnp
import numpy as np

from trajopt.dynamics import CompliantContact, RigidContact, State, System
from trajopt.viz.plots import COLOURS, figure
from validation_experiments import scenes
from validation_experiments.report import Outcome, save, write_table

MU = 0.5
PUSHES = (0.0, 1.2, 2.4, 3.6, 4.8, 6.0, 7.2, 0.0)  # N, half a second each


def speed_under(pushes, dt: float, mu: float = MU, mass: float = 1.0, g: float = scenes.THESIS) -> np.ndarray:
    """Speed after each step of a box with Coulomb friction, in closed form: friction stops it, it never drives it."""
    v, found = 0.0, []
    for push in pushes:
        v += push / mass * dt
        v -= np.sign(v) * min(mu * g * dt, abs(v))
        found.append(v)
    return np.array(found)


def pushed_box(law, pushes, dt: float = 1e-3, mu: float = MU, g: float = scenes.THESIS):
    """(x, speed, solved) of the box of the thesis, resting on the floor, under the force pushes (T,) along x."""
    box = scenes.model(scenes.box_xml((1.5, 1.0, 0.5), friction=mu)).replace(gravity=jnp.asarray([0, 0, -g]))
    compliant = isinstance(law, CompliantContact)
    system = System(box, dt=dt, contact=law, integrator="rk4" if compliant else "semi-implicit")
    # Four corners carry 1 kg where they rest: g = 4 k d^1.5.
    depth = (g / (4 * law.stiffness)) ** (2 / 3) if compliant else 0.0
    x = scenes.at(z=0.25 - depth)
    if compliant:
        x = State(x.q, x.v, system.initial_state().contact)
    xs, solved, *_ = scenes.pushed(system, x, jnp.asarray(np.outer(pushes, np.eye(6)[0])))
    return np.asarray(xs.q)[:, 0], np.asarray(xs.v)[:, 0], bool(np.asarray(solved).all())


def sliding_box() -> Outcome:
    dt, each = 1e-3, 500
    pushes = np.repeat(PUSHES, each)
    t = dt * np.arange(1, len(pushes) + 1)
    exact = speed_under(pushes, dt)
    runs = {"RigidContact": RigidContact(), "CompliantContact, RK4": CompliantContact()}
    made, axes = figure(3, 1, width=7.5, height=1.8)
    rows, errors = [], {}
    for k, (name, law) in enumerate(runs.items()):
        x, v, solved = pushed_box(law, pushes, dt)
        assert solved
        axes[0, 0].plot(t, x, color=COLOURS[k], label=name)
        axes[1, 0].plot(t, v, color=COLOURS[k], label=name)
        errors[name] = np.abs(v - exact).max()
        rows.append([name, *(f"{v[each * (i + 1) - 1]:.1e}" for i in (1, 2, 3, 4)),
                     *(f"{v[each * (i + 1) - 1]:.6f}" for i in (5, 6)), f"{v[-1]:.1e}", f"{errors[name]:.0e}"])  # fmt: skip
    ends = exact[each - 1 :: each]
    rows.append(["closed form", *["0"] * 4, f"{ends[5]:.6f}", f"{ends[6]:.6f}", "0", ""])
    axes[0, 0].plot(t, dt * np.cumsum(exact), "k:", label="closed form")
    axes[1, 0].plot(t, exact, "k:", label="closed form")
    axes[2, 0].plot(t, pushes, color=COLOURS[7], label="force")
    axes[2, 0].axhline(MU * scenes.THESIS, color="k", linestyle="--", linewidth=0.8, label="μ m g")
    for ax, label in zip(axes[:, 0], ("position, m", "speed, m/s", "force, N"), strict=True):
        ax.set_ylabel(label)
        ax.legend(frameon=False, fontsize=8, loc="upper left")
    axes[2, 0].set_xlabel("time, s")
    save(made, "sliding-box")
    header = ["speed (m/s) at the end of", *(f"{PUSHES[i]} N" for i in range(1, 7)), "no force", "largest error, m/s"]
    write_table("friction", "sliding-box", header, rows)
    return Outcome([
        ("speed of a box pushed in steps, hard contact", "closed form", f"{errors['RigidContact']:.0e} m/s"),
        ("the same, compliant contact", "closed form of rigid friction", f"{errors['CompliantContact, RK4']:.0e} m/s"),
    ])  # fmt: skip


def slid(model, law, state: State, steps: int, dt: float = 1e-3):
    """(acceleration along x from rest over the whole time, solved)."""
    xs, solved, *_ = scenes.rollout(System(model, dt=dt, contact=law), state, steps)
    return float(xs.v[-1, 0]) / (dt * steps), bool(np.asarray(solved).all())


def box_down(degrees: float, mu: float = 0.4, law=None, steps: int = 200):
    """Acceleration of a cube that starts at rest on an incline."""
    box = scenes.on_incline(scenes.model(scenes.box_xml()), degrees, mu)
    return slid(box, law or RigidContact(), scenes.at(z=0.1), steps)


def ball_down(degrees: float, mu: float = 0.2, steps: int = 200):
    """Acceleration of a ball that starts at rest on an incline."""
    return slid(
        scenes.on_incline(scenes.model(scenes.ball_xml()), degrees, mu), RigidContact(), scenes.at(z=0.1), steps
    )


def box_law(degrees, mu: float = 0.4):
    angle = np.deg2rad(degrees)
    return np.maximum(scenes.EARTH * (np.sin(angle) - mu * np.cos(angle)), 0.0)


def ball_law(degrees, mu: float = 0.2):
    angle = np.deg2rad(degrees)
    return np.maximum(5 / 7 * np.sin(angle), np.sin(angle) - mu * np.cos(angle)) * scenes.EARTH


def incline_angle() -> Outcome:
    fine, critical, rolls = np.linspace(0, 60, 601), np.rad2deg(np.arctan(0.4)), np.rad2deg(np.arctan(0.7))
    made, axes = figure(1, 2, width=4.6, height=2.8)
    rows, worst = [], {}
    cases = (("box", box_down, box_law, 0.4, critical, "slips"), ("ball", ball_down, ball_law, 0.2, rolls, "slides"))
    for ax, (name, run, law, mu, threshold, does) in zip(axes[0], cases, strict=True):
        angles = np.sort(np.r_[np.arange(0, 61, 5.0), threshold - 0.1, threshold + 0.1])
        found = []
        for degrees in angles:
            a, solved = run(degrees)
            assert solved
            found.append(a)
        errors = np.abs(np.array(found) - law(angles))
        worst[name] = errors.max()
        ax.plot(fine, law(fine), "k-", linewidth=0.9, label="closed form")
        ax.plot(angles, found, "o", color=COLOURS[0], markersize=4, label="RigidContact")
        ax.axvline(threshold, color=COLOURS[1], linestyle=":", label=f"{name} {does} beyond")
        ax.set_xlabel("angle of the incline, degrees")
        ax.set_ylabel(f"acceleration of the {name}, m/s²")
        ax.legend(frameon=False, fontsize=8)
        for degrees in (threshold - 0.1, threshold + 0.1):
            a = found[int(np.flatnonzero(angles == degrees)[0])]
            rows.append(
                [f"{name}, μ = {mu}", f"{degrees:.3f}", f"{a:.9f}", f"{law(degrees):.9f}", f"{worst[name]:.0e}"]
            )
    save(made, "incline-angle")
    header = ["body", "angle, degrees", "acceleration, m/s²", "closed form, m/s²", "largest error of 15 angles, m/s²"]
    write_table("friction", "incline-angle", header, rows)
    return Outcome([
        ("box on an incline of 0 to 60 degrees", "g (sin - μ cos)", f"{worst['box']:.0e} m/s²"),
        ("ball that rolls or slides on an incline", "5/7 g sin, g (sin - μ cos)", f"{worst['ball']:.0e} m/s²"),
    ])  # fmt: skip
