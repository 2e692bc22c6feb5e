"""Step, and step plus full Jacobian, of standing robots; MuJoCo on the same model files in the same run.

    python benchmarks/bench_step_jacobian.py [--models go1,h1,atlas] [--moving] [--rounds 3] [--processor]

All settings are defaults: `System(model, dt=1e-3)`, the backend that it resolves to, `max_contacts` as it comes. "In a loop" is a
step of a compiled `lax.scan`, in which every step waits for the one before; "called" is the public method, its checks included,
and one array of its answer, A in `linearize`;
"in a batch" is a sample of `jax.vmap` over 64. Velocities are zero, or drawn with deviation 0.02 (--moving, seed 0). Both engines
are timed in turn, --rounds times: clocks of virtual machines vary. Times are medians, ratios medians of those of the rounds, and
the least and greatest of these.

MuJoCo's Jacobian is its one-sided finite difference, `mjd_transitionFD` (float64, the only one it has on a CPU). Ours is
`System.linearize`: the exact derivative, the step included. bench_peers.py has MJX beside both.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from measure import LOOP, banner, begin, in_loop, microseconds, mujoco_calls, standing, step_and_linearize
from results import record

BATCH = 64
Timers = dict[str, Callable[[], float]]


def ours(name: str, moving: bool) -> tuple[dict, Timers]:
    """What is known of step and linearize at the home pose, 10 um inside the floor, and what times them, us."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from trajopt.dynamics import State, System
    from trajopt.models import load_model

    model = load_model(name)
    system = System(model, dt=1e-3)
    x = State(jnp.asarray(standing(model)), jnp.asarray(velocity(model, moving)))
    u = jnp.zeros(system.nu)
    start = time.perf_counter()
    _, info = jax.block_until_ready(system.step(x, u))
    compile_step = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(system.linearize(x, u).A)
    compile_jacobian = time.perf_counter() - start
    closed = int(np.sum(np.asarray(info.contacts.mode) > 0))

    many = jnp.tile(x.q, (BATCH, 1))
    functions = step_and_linearize(system, x.v, u)
    batches = [jax.jit(jax.vmap(function)) for function in functions]
    loops = [in_loop(function, x.q) for function in functions]
    facts = {
        "backend": system.resolved_backend, "dof": system.nv, "contacts": closed, "compile_step_s": compile_step,
        "compile_jacobian_s": compile_jacobian,
    }  # fmt: skip
    return facts, {
        "step_us": lambda: microseconds(loops[0]) / LOOP,
        "step_jacobian_us": lambda: microseconds(loops[1]) / LOOP,
        "batch_step_us": lambda: microseconds(lambda: batches[0](many)) / BATCH,
        "batch_step_jacobian_us": lambda: microseconds(lambda: batches[1](many)) / BATCH,
        "call_step_us": lambda: microseconds(lambda: system.step(x, u)[0].v),
        "call_linearize_us": lambda: microseconds(lambda: system.linearize(x, u).A),
    }


def velocity(model, moving: bool):
    """Zero, or drawn with deviation 0.02 (rad/s, m/s)."""
    import numpy as np

    return 0.02 * moving * np.random.default_rng(0).normal(size=model.nv)


def theirs(name: str, moving: bool) -> tuple[dict, Timers]:
    """The same of MuJoCo."""
    from trajopt.models import load_model

    model = load_model(name)
    step, jacobian, d = mujoco_calls(name, standing(model), velocity(model, moving))
    step()
    return {"contacts": int(d.ncon)}, {"step_us": lambda: microseconds(step), "jacobian_us": lambda: microseconds(jacobian)}


def in_turn(name: str, moving: bool, rounds: int) -> tuple[dict, dict, dict[str, list[float]]]:
    """What is known and measured of ours and of MuJoCo's, and the ratios of every round: how many times faster than MuJoCo's
    differences a step with its Jacobian is, in a loop and called, and how long a step in a loop is beside `mj_step`."""
    (mine, timers), (peer, peer_timers) = ours(name, moving), theirs(name, moving)
    found, peer_found = ({key: [] for key in part} for part in (timers, peer_timers))
    for _ in range(rounds):
        for times, part in ((found, timers), (peer_found, peer_timers)):
            for key, timer in part.items():
                times[key].append(timer())

    def ratios(one: list[float], other: list[float]) -> list[float]:
        return [a / b for a, b in zip(one, other, strict=True)]

    differences = peer_found["jacobian_us"]
    shares = {
        "loop": ratios(differences, found["step_jacobian_us"]),
        "called": ratios(differences, found["call_linearize_us"]),
        "step": ratios(found["step_us"], peer_found["step_us"]),
    }
    middle, peer_middle = ({k: statistics.median(v) for k, v in times.items()} for times in (found, peer_found))
    return mine | middle, peer | peer_middle, shares


def spread(ratios: list[float]) -> str:
    """ "11.2x (9.1 to 13)": median, least and greatest."""
    return f"{statistics.median(ratios):.3g}x ({min(ratios):.3g} to {max(ratios):.3g})"


def keep(name: str, how: str, mine: dict, shares: dict[str, list[float]]) -> None:
    """The figures of a model, standing or moving, for docs/results.json."""
    record(f"step/{name}/{how}", mine["step_us"], "us")
    record(f"step-jacobian/{name}/{how}/us", mine["step_jacobian_us"], "us")
    record(f"step-jacobian/{name}/{how}", statistics.median(shares["loop"]), "times MuJoCo's differences")
    record(f"step-jacobian/{name}/{how}/called", statistics.median(shares["called"]), "times MuJoCo's differences")
    record(f"step-over-mujoco/{name}/{how}", statistics.median(shares["step"]), "of mj_step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="half-cheetah,go1,h1,humanoid,atlas")
    parser.add_argument("--moving", action="store_true", help="random velocities in place of zero")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = begin(parser)
    print(banner("mujoco"))
    print(f"{'us':13s} {'DoF':>4s} {'contacts':>8s} | in a loop: {'step':>6s} {'+ Jac':>6s} | in a batch: {'step':>6s} "
          f"{'+ Jac':>6s} | called: {'step':>6s} {'+ Jac':>6s} | MuJoCo: {'step':>6s} {'differences':>11s} "
          "| times faster in a loop, called; step over mj_step")  # fmt: skip
    for name in arguments.models.split(","):
        mine, peer, shares = in_turn(name, arguments.moving, arguments.rounds)
        keep(name, "moving" if arguments.moving else "standing", mine, shares)
        print(f"{name:13s} {mine['dof']:4d} {mine['contacts']:4d}/{peer['contacts']:<3d} |            {mine['step_us']:6.1f} "
              f"{mine['step_jacobian_us']:6.1f} |             {mine['batch_step_us']:6.1f} {mine['batch_step_jacobian_us']:6.1f} "
              f"|         {mine['call_step_us']:6.1f} {mine['call_linearize_us']:6.1f} |         {peer['step_us']:6.1f} "
              f"{peer['jacobian_us']:11.1f} | {', '.join(spread(x) for x in shares.values())}  ({mine['backend']}; first calls "
              f"{mine['compile_step_s']:.2f} and {mine['compile_jacobian_s']:.2f} s)", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
