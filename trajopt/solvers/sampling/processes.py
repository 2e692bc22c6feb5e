"""A generation whose rollouts the processes of `jax.distributed` share.

Every process runs the same `solve` and keeps the same distribution. Each draws all candidates, which depend on seed and
generation alone, and rolls out every n-th batch of them; their merits, costs, violations and terminal equality rows are
gathered, the best motion and the rows of the first two candidates are sent by the process that has them, and each does the
whole update itself.

Batches have `chunk` candidates whatever the number of processes, so that the same compiled program rates the same candidates:
the iterates are the same to the last bit, on processors of one kind with as many threads a process. Numbers travel as words
of 32 bits, which no reduction rounds and no process without float64 cuts. Processes that drift apart all the same, on unlike
machines, would optimise nothing together: a checksum of the candidates is gathered with their merits and a difference raises.
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float, UInt32

from trajopt.errors import OptionError
from trajopt.problems.oracle import OptimalControlOracle
from trajopt.solvers.sampling.parametrisation import Space
from trajopt.solvers.sampling.rollouts import Scores, batch_size, best_batch, rated_batch
from trajopt.solvers.subproblems.augmented_lagrangian import Multipliers

CHUNK = 16  # candidates of a batch by default: what one process works on at a time


def split_chunk(chunk: int | None) -> int:
    """Candidates of a batch, which must not depend on the number of processes."""
    return CHUNK if chunk is None else chunk


def score_over_processes(
    oracle: OptimalControlOracle,
    space: Space,
    y: Float[np.ndarray, "P d"],
    multipliers: Multipliers,
    chunk: int | None,
) -> Scores:
    """Roll out and rate the candidates y (P, d) together: every process calls this with the same y and gets the same scores.

    Raises `OptionError` in every process where their candidates differ.
    """
    problem, total = oracle.problem, len(y)
    size, one_by_one = batch_size(problem, split_chunk(chunk), total)
    batches = range(-(-total // size))
    own = {
        k: rated_batch(oracle, space, y, multipliers, k * size, size, one_by_one)
        for k in batches[jax.process_index() :: jax.process_count()]
        or batches[:1]  # one at least, whose shapes say what comes
    }
    oracle.evaluations += total
    found = _gathered(own, len(batches), y)
    merit, cost, largest = (found[:, i].ravel()[:total].astype(problem.dtype) for i in range(3))
    arrival = np.moveaxis(found[:, 4:], 1, 2).reshape(len(batches) * size, -1)[:total]
    leaders = np.array([size * k + int(found[k, 3, 0]) for k in batches])
    winner = best_batch(largest[leaders], (merit if space.scenarios else cost)[leaders], problem.tolerance)
    motion = _sent(winner, own, slice(5, 6))[0]
    rows, bad = _sent(0, own, slice(6, 8))
    return Scores(
        merit=merit,
        cost=cost,
        violation=largest,
        arrival=arrival.astype(problem.dtype),
        best=int(leaders[winner]),
        motion=motion,
        rows=[(rows[0][i], rows[1][i]) for i in range(2)],
        bad_step=int(bad[0]),
        rated=total,
    )


def _gathered(own: dict[int, tuple], batches: int, y: Float[np.ndarray, "P d"]) -> Float[np.ndarray, "b k s"]:
    """Of every batch, in rows: merit, cost, violation, index of the best (repeated), and each terminal equality row."""
    tables = {
        k: np.stack([*found[:3], np.full(len(found[0]), found[4]), *found[3].T]).astype(float)
        for k, found in own.items()
    }
    shape = next(iter(tables.values())).shape
    count = jax.process_count()
    if count == 1:
        return np.stack([tables[k] for k in range(batches)])
    places = range(jax.process_index(), jax.process_index() + count * -(-batches // count), count)
    filled = np.stack([tables.get(k, np.zeros(shape)) for k in places])
    sent = np.append(filled.ravel(), float(zlib.crc32(np.ascontiguousarray(y).tobytes())))
    everything = np.asarray(multihost_utils.process_allgather(_words(sent)), np.uint32).view(float)
    unlike = np.flatnonzero(everything[:, -1] != everything[0, -1])
    if unlike.size:
        raise OptionError(
            f"the processes draw other candidates: process {unlike[0]} differs from process 0. over_processes needs the same "
            "problem, solver, seed and start in each, processors of one kind and as many threads a process"
        )
    tables_by_process = everything[:, :-1].reshape(count, -1, *shape)
    return np.stack([tables_by_process[k % count, k // count] for k in range(batches)])


def _sent(batch: int, own: dict[int, tuple], part: slice) -> tuple:
    """A part of what was found of a batch, from the process that rolled it out."""
    owner, count = batch % jax.process_count(), jax.process_count()
    like: Any = own.get(batch, next(iter(own.values())))[part]
    leaves, structure = jax.tree.flatten(like)
    sizes = [np.size(leaf) for leaf in leaves]
    if count == 1 or sum(sizes) == 0:
        return like
    values = np.concatenate([np.asarray(leaf, float).ravel() for leaf in leaves])
    words = multihost_utils.broadcast_one_to_all(_words(values), is_source=jax.process_index() == owner)
    received = np.split(np.asarray(words, np.uint32).view(float), np.cumsum(sizes)[:-1])
    shaped = [a.reshape(np.shape(leaf)).astype(leaf.dtype) for a, leaf in zip(received, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def _words(values: Float[np.ndarray, " k"]) -> UInt32[np.ndarray, " w"]:
    return np.ascontiguousarray(values, float).view(np.uint32)
