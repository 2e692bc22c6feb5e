r"""A box dropped on an incline of 20 degrees, beside MuJoCo in the same run (JaxSim thesis, 7.5.3 and Table 7.1).

1 kg, 0.15 x 0.1 x 0.05 m, released at rest 1 m above the origin with its sides along those of the world, so that it lands on an
edge; 2.5 s in steps of 1 ms; mu = 2, 0 and 0.5. MuJoCo is set up as in the thesis: RK4, Newton, elliptic cone, condim 3, solref
(-1e6, -2000). Friction of zero is that of MuJoCo's condim 1.

Everything is computed in the frame of the incline. In closed form: without friction nothing ever acts along the slope, so that
the centre of mass moves along it by g sin(20) t^2 / 2, whatever the impacts were; with mu > tan(20) = 0.364 the box ends at rest.
"""

import mujoco
import numpy as np

from trajopt.dynamics import CompliantContact, RigidContact, System
from trajopt.viz.plots import COLOURS, figure
from validation_experiments import scenes
from validation_experiments.report import Outcome, save, write_table

DEGREES, DT, STEPS = 20.0, 1e-3, 2500
SIDES = (0.15, 0.1, 0.05)
FRICTIONS = (2.0, 0.0, 0.5)


def start(height: float = 1.0) -> np.ndarray:
    """q of the box `height` above the origin, level in the world, in the frame of the incline."""
    angle = np.deg2rad(DEGREES)
    # The incline's axes are the world's turned about y; a level box is turned back.
    return np.array([-height * np.sin(angle), 0, height * np.cos(angle), np.cos(angle / 2), 0, -np.sin(angle / 2), 0])


def lying() -> np.ndarray:
    """q of the box lying on the incline."""
    return np.array([0, 0, 0.5 * SIDES[2], 1, 0, 0, 0])


def ours(law, mu: float, q, steps: int = STEPS):
    """(q (T, 7), v (T, 6)) after each step."""
    box = scenes.on_incline(scenes.model(scenes.box_xml(SIDES, friction=1.0)), DEGREES, mu, scenes.THESIS)
    integrator = "rk4" if isinstance(law, CompliantContact) else "semi-implicit"
    xs, solved, *_ = scenes.rollout(
        System(box, DT, contact=law, integrator=integrator), scenes.at(*q[:3], q[3:]), steps
    )
    if not np.asarray(solved).all():
        raise RuntimeError(f"{law}: step {np.flatnonzero(~np.asarray(solved))[0]} was not solved")
    return np.asarray(xs.q), np.asarray(xs.v)


def mujocos(mu: float, q, steps: int = STEPS):
    """The same by MuJoCo with the options of Table 7.1."""
    model = mujoco.MjModel.from_xml_string(scenes.box_xml(SIDES, friction=mu))
    model.opt.gravity[:] = scenes.slope_gravity(DEGREES, scenes.THESIS)
    model.opt.timestep, model.opt.iterations = DT, 50
    model.opt.integrator, model.opt.solver = mujoco.mjtIntegrator.mjINT_RK4, mujoco.mjtSolver.mjSOL_NEWTON
    model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    model.geom_friction[:] = (mu, 0.0, 0.0)
    model.geom_condim[:] = 3 if mu > 0 else 1
    model.geom_solref[:] = (-1e6, -2000)
    data = mujoco.MjData(model)
    data.qpos[:] = q
    qs, vs = [], []
    for _ in range(steps):
        mujoco.mj_step(model, data)
        qs.append(data.qpos.copy())
        vs.append(data.qvel.copy())
    return np.array(qs), np.array(vs)


def simulators():
    return {
        "RigidContact": lambda mu, q: ours(RigidContact(), mu, q),
        "CompliantContact, RK4": lambda mu, q: ours(CompliantContact(), mu, q),
        f"MuJoCo {mujoco.__version__}": mujocos,
    }


def run() -> Outcome:
    slope, t = np.deg2rad(DEGREES), DT * np.arange(1, STEPS + 1)
    along = scenes.THESIS * np.sin(slope)
    free = {"RK4": along * t**2 / 2, "semi-implicit": along * (t**2 + DT * t) / 2}
    made, axes = figure(3, 2, width=4.6, height=2.2)
    rows, rest, sliding, level = [], {}, {}, {}
    for i, mu in enumerate(FRICTIONS):
        for k, (name, simulate) in enumerate(simulators().items()):
            q, v = simulate(mu, start())
            x, z = q[:, 0] * np.cos(slope) + q[:, 2] * np.sin(slope), q[:, 2] * np.cos(slope) - q[:, 0] * np.sin(slope)
            axes[i, 0].plot(t, x, color=COLOURS[k], label=name, linewidth=1.2, linestyle=("-", "--", ":")[k])
            axes[i, 1].plot(t, z, color=COLOURS[k], label=name, linewidth=1.2, linestyle=("-", "--", ":")[k])
            moved = q[-1, 0] - start()[0]
            creep = np.abs(v[-500:, 0]).max()
            if mu == 0:
                scheme = "semi-implicit" if name == "RigidContact" else "RK4"
                sliding[name] = np.abs(q[:, 0] - start()[0] - free[scheme]).max()
                rows.append([mu, name, f"{moved:.4f}", f"{free[scheme][-1]:.4f}", f"{sliding[name]:.0e}", ""])
            else:
                rest[name] = max(rest.get(name, 0.0), creep)
                rows.append([mu, name, f"{moved:.4f}", "", "", f"{creep:.0e}"])
            level[name] = max(level.get(name, 0.0), np.abs(q[:, 1]).max())
        for ax, label in zip(axes[i], ("x, m", "z, m"), strict=True):
            ax.set_ylabel(f"μ = {mu}: {label}")
    for ax in axes[2]:
        ax.set_xlabel("time, s")
    axes[0, 0].legend(frameon=False, fontsize=8)
    save(made, "incline")
    header = ["μ", "simulator", "way along the slope after 2.5 s, m", "closed form, m", "largest difference, m",
              "largest speed in the last 0.5 s, m/s (closed form: 0)"]  # fmt: skip
    write_table("friction", "incline", header, rows)
    lie()
    return Outcome([
        ("box dropped on 20 degrees without friction, hard contact", "g sin t² / 2", f"{sliding['RigidContact']:.0e} m"),
        ("the same, compliant contact", "g sin t² / 2", f"{sliding['CompliantContact, RK4']:.0e} m"),
        ("speed at rest on 20 degrees, μ = 0.5 and 2, hard contact", "0", f"{rest['RigidContact']:.0e} m/s"),
        ("the same, compliant contact", "0", f"{rest['CompliantContact, RK4']:.0e} m/s"),
    ])  # fmt: skip


def slides(mu: float) -> float:
    """Acceleration of a box lying on the incline, m/s^2."""
    slope = np.deg2rad(DEGREES)
    return max(scenes.THESIS * (np.sin(slope) - mu * np.cos(slope)), 0.0)


def lie() -> None:
    """A box that lies on the incline from the start, where the closed form holds for every mu."""
    rows = []
    for mu in (2.0, 0.5, 0.2, 0.0):
        exact = slides(mu) * DT * 1000
        speeds = [float(f(mu, lying())[1][999, 0]) for f in simulators().values()]
        rows.append([mu, f"{exact:.6f}", *(f"{speed:.6f} ({speed - exact:+.0e})" for speed in speeds)])
    write_table("friction", "incline-lying", ["μ", "closed form, m/s", *simulators()], rows)
