"""The compiled core beside the JAX implementation: steps and Jacobians at random states in contact, model after model.

    python benchmarks/backend_agreement.py [--models go1,Talos] [--states 1000] [--seed 0] [--json FILE] [--standing]

All bundled models, and seventeen robots of the package example-robot-data as they are published (with a free base and a ground
plane where they have none; overlapping pairs are left out). States come from drops and short rollouts under random controls
(`contact_states`), dt = 1 ms, settings being defaults. A state is compared where the JAX implementation drops no contact and the
core reports all of them. --standing: states as the speed of steps is measured in, the home pose 10 um inside the floor with
velocities of deviation 0.02 (go1, h1, humanoid, atlas, half-cheetah, anymal-c).

v+: largest difference over the largest entry (asked: 1e-9), where both find the same solution. A, B: the same of the columns
of `linearize` that neither backend marks as one-sided (asked: 1e-8), then of the others (asked: 1e-4). Where contact leaves
less of A or B than a millionth of what they are without contact, as of B where a limit holds the joint, that millionth takes
the place of the largest entry: what is left is rounding. above: in how many states it is. other: states in which v+ differs by
more than 1e-6 though both residuals are below 1e-9, so that the law has several solutions there. none: states in which one of
them proves that the law has no solution, and the other finds none. unsolved: other states in which one of them reports another
status than solved. s: seconds, most of them of compiling.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

# Large programs that run for a second or two: optimising them takes XLA minutes.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_disable_hlo_passes=constant_folding",
)

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from bench_step_jacobian import standing  # noqa: E402
from contact_states import draw  # noqa: E402
from dropped_scenes import PRIMITIVE, PUBLISHED, model_of  # noqa: E402
from measure import banner, markdown  # noqa: E402

from trajopt.dynamics import NoContact, State, System  # noqa: E402
from trajopt.models import bundled_models  # noqa: E402
from trajopt.result import Status  # noqa: E402

DT = 1e-3
VELOCITY, MATRIX, ONE_SIDED = 1e-9, 1e-8, 1e-4  # what is asked, of the largest entry
LEAST = 1e-6  # of A and B without contact: the least scale of theirs
ANOTHER, LAWFUL = 1e-6, 1e-9  # relative difference of v+ and residuals of two solutions
PROGRESS = 50  # states after which what is found so far is printed: of large robots 1,000 take an hour and more
HEAD = (
    "model", "DoF", "states", "v+", "above", "A, B", "above", "one-sided columns", "A, B there", "above", "other", "none",
    "unsolved", "s",
)  # fmt: skip


@dataclasses.dataclass
class Agreement:
    """What is found of one model, in the order of `HEAD`."""

    states: int = 0
    velocity: float = 0.0
    velocity_above: int = 0
    matrix: float = 0.0
    matrix_above: int = 0
    one_sided: int = 0
    sided_matrix: float = 0.0
    sided_above: int = 0
    other: int = 0
    none: int = 0
    unsolved: int = 0

    def add(self, core, reference, free) -> None:
        """One state by both backends, and without contact (`Linearization`)."""
        if int(reference.info.dropped) or int(core.info.overflow):
            return
        self.states += 1
        status = core.info.status, reference.info.status
        if not all(x == Status.solved for x in status):
            proven = any(x == Status.infeasible for x in status) and not any(x == Status.solved for x in status)
            self.none += proven
            self.unsolved += not proven
            return
        v, expected = np.asarray(core.x_next.v), np.asarray(reference.x_next.v)
        apart = relative(v, expected, expected)
        if apart > ANOTHER and max(float(core.info.residual), float(reference.info.residual)) < LAWFUL:
            self.other += 1
            return
        self.velocity = max(self.velocity, apart)
        self.velocity_above += apart > VELOCITY
        sided = np.asarray(core.one_sided) | np.asarray(reference.one_sided)
        self.one_sided += int(sided.sum())
        both = [np.concatenate([np.asarray(x.A), np.asarray(x.B)], 1) for x in (core, reference, free)]
        n, plain, beside = 2 * v.size, 0.0, 0.0
        for part in (slice(0, n), slice(n, None)):  # A, B
            ours, theirs, marked = both[0][:, part], both[1][:, part], sided[part]
            scale = np.append(np.abs(theirs), LEAST * np.abs(both[2][:, part]))
            plain = max(plain, relative(ours[:, ~marked], theirs[:, ~marked], scale))
            beside = max(beside, relative(ours[:, marked], theirs[:, marked], scale))
        self.matrix, self.sided_matrix = max(self.matrix, plain), max(self.sided_matrix, beside)
        self.matrix_above += plain > MATRIX
        self.sided_above += beside > ONE_SIDED


def relative(ours: np.ndarray, theirs: np.ndarray, scale: np.ndarray) -> float:
    """Largest difference over the largest entry of `scale`."""
    size = np.abs(scale).max(initial=0.0)
    return float(np.abs(ours - theirs).max(initial=0.0) / (size or 1.0))


def upright(system: System, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(q, v, u) of states as the speed of steps is measured in."""
    q, rng = standing(system.model), np.random.default_rng(seed)
    while True:
        yield q, 0.02 * rng.normal(size=system.nv), np.zeros(system.nu)


def compared(name: str, count: int, seed: int, states: Callable) -> tuple[int, Agreement]:
    """(degrees of freedom, what is found) of one model; states: (system, seed) -> (q, v, u), one after another."""
    model, found = model_of(name), Agreement()
    core, reference = (System(model, DT, backend=backend) for backend in ("native", "jax"))
    free = System(model, DT, NoContact())
    for number, (q, v, u) in enumerate(itertools.islice(states(core, seed), count), 1):
        x, u = State(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(u)
        found.add(core.linearize(x, u), reference.linearize(x, u), free.linearize(x, u))
        if number % PROGRESS == 0:
            print(f"{name}, {number} drawn: {found}", file=sys.stderr, flush=True)
    return model.nv, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = (*bundled_models(), *PUBLISHED, *PRIMITIVE)
    parser.add_argument("--models", default=",".join(known), help="names, separated by commas")
    parser.add_argument("--states", type=int, default=1000, help="of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
    parser.add_argument("--standing", action="store_true", help="states as the speed of steps is measured in")
    options = parser.parse_args()
    print(banner())
    rows, results = [], {}
    for name in options.models.split(","):
        start = time.perf_counter()
        dof, found = compared(name, options.states, options.seed, upright if options.standing else draw)
        rows.append((name, dof, *dataclasses.astuple(found), round(time.perf_counter() - start)))
        results[name] = dataclasses.asdict(found)
        print(*rows[-1], flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
