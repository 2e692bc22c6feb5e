"""`mujoco.sysid` and `identify` on the same log: the arm of the examples, 50 inertial parameters, a delay and a gain.

    python -m venv /tmp/sysid && /tmp/sysid/bin/pip install "mujoco[sysid]"
    python benchmarks/sysid_peer.py /tmp/sysid/bin/python [--seed 0] [--log arm.npz]

`mujoco.sysid` runs in that environment, at its default options, with its own coordinates of inertia and bounds, from the same
first guess. It takes first states as known: it is given pieces of 0.2 s with first states on the motion that `identify` found,
predicted in MuJoCo. (From pieces of 1 s it stops after two iterations, far off.) A delay of controls is no parameter of its own;
the controls are shifted before each of its rollouts. Printed: rollouts of one recording of 3 s that each needs, a piece counting
by its share; processor time; the mean square of the residuals in deviations of the noise; and, of the values that have an
interval of 95 %, how many hold the truth, and how many the answer of `mujoco.sysid`.
"""

import argparse
import pathlib
import subprocess
import tempfile
import time

import numpy as np

DT, EVERY, NOISE = 2e-3, 2, 2e-4  # of the example "arm": the step, steps between samples, deviation of an encoder
SHORT = 0.2  # s, of the pieces that `mujoco.sysid` is given
LINKS = ("upper_arm_link", "forearm_link", "wrist_1_link", "wrist_2_link", "wrist_3_link")


def identified(seed: int, path: pathlib.Path) -> None:
    """Fit the arm by `identify`, and write the log and what was found."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from trajopt.estimation import examples, identify
    from trajopt.models.registry import bundled_file

    example = examples.simulate("arm", seed)
    begin = time.process_time()
    fit = identify(example.system, example.recordings, example.parameters, example.sensors)
    seconds, nv = time.process_time() - begin, example.system.nv
    firsts, local = fit.found.firsts, fit.found.locals
    start = [np.concatenate([f.q, f.v]) + d[: 2 * nv] for f, d in zip(firsts, local)]
    np.savez(
        path, model=str(bundled_file("ur5")), q=[r["q"].values for r in example.recordings],
        u=[r["torque"].values for r in example.recordings], start=start, truth=example.truth, values=fit.values,
        intervals=fit.intervals, rollouts=fit.rollouts, seconds=seconds, mean_square=fit.chi_squared["q"],
    )  # fmt: skip


def delayed(u: np.ndarray, delay: float) -> np.ndarray:
    """Commands held for a step each: the mean over steps that begin `delay` later."""
    steps = max(delay / DT, 0.0)
    whole, share = int(steps), steps - int(steps)
    first = np.concatenate([np.repeat(u[:1], whole + 1, 0), u])
    return (1 - share) * first[1 : len(u) + 1] + share * first[: len(u)]


def motions(spec, log: dict) -> np.ndarray:
    """(q, v) before every step of the log, of all recordings one after the other, in MuJoCo with what `identify` found."""
    import mujoco
    from mujoco import rollout

    for link, (m, x, y, z, *inertia) in zip(LINKS, log["values"][:-2].reshape(-1, 10)):
        body = spec.body(link)
        body.mass, body.ipos, body.iquat, body.inertia = m, (x, y, z), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0)
        body.fullinertia = inertia
    model = spec.compile()
    delay, gain = log["values"][-2:]
    per = len(log["start"]) // len(log["u"])
    states = []
    for k, x in enumerate(log["start"]):
        late = gain * delayed(log["u"][k // per], delay)
        late = late[k % per * len(late) // per :][: len(late) // per]
        data = mujoco.MjData(model)
        first = np.concatenate([[0.0], x])
        after = np.squeeze(rollout.rollout(model, data, first, late)[0], 0)
        states.append(np.concatenate([x[None], after[:-1, 1:]]))
    return np.concatenate(states)


def fitted_by_peer(path: pathlib.Path, iterations: int) -> None:
    """Fit the log by `mujoco.sysid`, and add what it found."""
    import mujoco
    from mujoco import sysid

    log = dict(np.load(path))
    spec = mujoco.MjSpec.from_file(str(log["model"]))
    spec.option.timestep = DT
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT
    for actuator in spec.actuators:
        actuator.ctrllimited = False
    model = spec.compile()
    params = sysid.ParameterDict()
    for link in LINKS:

        def apply(spec, param, link: str = link) -> None:
            sysid.apply_body_inertia(spec, link, param)
            spec.body(link).iquat = (1.0, 0.0, 0.0, 0.0)  # of NaN, as it leaves them, version 4.0.0 makes an inertia of zero

        kind = sysid.InertiaType.Pseudo
        params.add(sysid.body_inertia_param(spec, model, link, inertia_type=kind, modifier=apply))

    def scale(spec, param) -> None:
        for actuator in spec.actuators:
            actuator.gear[0] = param.value[0]

    params.add(sysid.Parameter("delay", 2e-3, 0.0, 0.02))
    params.add(sysid.Parameter("gain", 1.0, 0.5, 2.0, modifier=scale))
    count, commands = 0, np.concatenate(log["u"])  # one time axis: the pieces of all recordings, one after the other
    each, length = len(log["u"][0]), round(SHORT / DT)
    motion = motions(mujoco.MjSpec.from_string(spec.to_xml()), log)
    nq = model.nq
    errors = (motion[::EVERY, :nq] - np.concatenate(log["q"])) / NOISE

    def rollout(models, datas, control_signal, initial_states, param_dicts, **maps):
        nonlocal count
        count += len(models)
        late = []
        for c, given in zip(control_signal, param_dicts):  # one piece at a time, of all models
            k = round(c.times[0] / DT)
            whole = delayed(commands[k // each * each : (k // each + 1) * each], float(given["delay"].value[0]))
            late.append(sysid.TimeSeries(c.times, whole[k % each :][:length], c.signal_mapping))
        return sysid.sysid_rollout(models, datas, late, initial_states, *maps.values())

    built: dict[bytes, mujoco.MjModel] = {}  # all pieces share the models of a step of the search

    def build(params, spec):
        key = params.as_vector().tobytes()
        if key not in built:
            if len(built) > 2 * len(params.as_vector()):
                built.clear()
            built[key] = sysid.apply_param_modifiers(params, spec)
        return built[key]

    def residual(params, predicted, measured, model, return_all, state=None, sensor_weights=None):
        q = state[EVERY - 1 :: EVERY, 1 : 1 + nq][: len(measured.data) - 1]
        seen = sysid.TimeSeries(measured.times[1 : 1 + len(q)], measured.data[1 : 1 + len(q)], measured.signal_mapping)
        return (q - seen.data) / NOISE, sysid.TimeSeries(seen.times, q, seen.signal_mapping), seen

    mapping = {"q": (sysid.SignalType.CustomObs, np.arange(model.nq))}
    sequences = []
    for k in range(len(commands) // length):
        steps, x = length * k + np.arange(length), motion[length * k]
        state = sysid.create_initial_state(model, x[:nq], x[nq:])
        q = np.concatenate(log["q"])[steps[0] // EVERY :][: length // EVERY]
        controls, seen = sysid.TimeSeries(DT * steps, commands[steps]), sysid.TimeSeries(DT * steps[::EVERY], q, mapping)
        sequences.append(sysid.ModelSequences(f"arm {k}", spec, f"{k}", state, controls, seen, allow_missing_sensors=True))
    function = sysid.build_residual_fn(
        models_sequences=sequences, modify_residual=residual, custom_rollout=rollout, build_model=build, resample_true=False
    )
    begin = time.process_time()
    found, _ = sysid.optimize(params, function, max_iters=iterations)
    seconds, rollouts = time.process_time() - begin, count * length / each
    end = np.concatenate([r.reshape(-1) for r in function(found.as_vector(), found)[0]])
    found.update_from_vector(found.as_vector())
    for param in found.values():
        param.apply_modifier(spec)
    answer, values = spec.compile(), []
    for link in LINKS:
        body = answer.body(link)
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, body.iquat)
        inertia = turn.reshape(3, 3) @ np.diag(body.inertia) @ turn.reshape(3, 3).T
        values += [*body.mass, *body.ipos, *np.diag(inertia), inertia[0, 1], inertia[0, 2], inertia[1, 2]]
    values += [found["delay"].value[0], found["gain"].value[0]]
    np.savez(
        path, **log, peer_values=values, peer_rollouts=rollouts, peer_seconds=seconds, peer_mean_square=np.mean(end**2),
        in_mujoco=np.mean(errors**2),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="interpreter of the environment with mujoco.sysid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=pathlib.Path, help="archive to keep; one that is there is not fitted again")
    parser.add_argument("--iterations", type=int, default=200, help="of mujoco.sysid at most; its default")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return fitted_by_peer(arguments.log, arguments.iterations)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.log or pathlib.Path(folder) / "arm.npz"
        if not path.exists():
            identified(arguments.seed, path)
        options = ["--peer", "--log", str(path), "--iterations", str(arguments.iterations)]
        subprocess.run([arguments.python, __file__, arguments.python, *options], check=True)
        log = dict(np.load(path))
    known = np.isfinite(log["intervals"]).all(1)
    low, high = log["intervals"][known].T
    print("| | identify | mujoco.sysid |\n|---|---|---|")
    for title, name in (("rollouts", "rollouts"), ("processor time, s", "seconds"), ("mean square", "mean_square")):
        print(f"| {title} | {float(log[name]):.4g} | {float(log[f'peer_{name}']):.4g} |")
    inside = [np.sum((low <= x[known]) & (x[known] <= high)) for x in (log["truth"], log["peer_values"])]
    print(f"in MuJoCo the values of identify leave a mean square of {float(log['in_mujoco']):.3g}")
    print(f"{known.sum()} values have an interval: {inside[0]} hold the truth, {inside[1]} the answer of mujoco.sysid")


if __name__ == "__main__":
    main()
