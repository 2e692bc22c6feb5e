"""The samples of a batch: each validated as a problem of its own, then stacked."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from trajopt.errors import OptionError, ShapeError, TrajoptError
from trajopt.problems.least_squares import LeastSquaresProblem
from trajopt.problems.ocp import OptimalControlProblem


@dataclasses.dataclass(frozen=True)
class Samples:
    """One problem for each sample, and its guess; `numbers` and `points` are stacked along the first axis."""

    problems: Sequence[Any]
    guesses: Sequence[Any]

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def numbers(self) -> dict[int, Any]:
        """The leaves in which the problems differ, by their places among the leaves of a problem (`with_numbers`)."""
        columns = zip(*(jax.tree.leaves(problem) for problem in self.problems), strict=True)
        return {
            k: np.stack([np.asarray(leaf) for leaf in column])
            for k, column in enumerate(columns)
            if any(leaf is not column[0] for leaf in column)
        }

    @property
    def points(self) -> Any:
        """The guesses."""
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *self.guesses)


def samples_of(problem: Any, guesses: Any, changes: Mapping[str, Any]) -> Samples:
    """One problem and guess for each entry along the first axes of `guesses` and of the arrays in `changes`.

    changes: arguments of `problem.replace`, None for those that stay. Raises what the problem's validation raises, with the
    number of the sample, and `ShapeError` or `OptionError` for arrays that do not go together.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    _check_kind(problem, given)
    count = _count(problem, guesses, given)
    problems, points = [], []
    for k in range(count):
        try:
            sample = problem.replace(**{key: _entry(value, k) for key, value in given.items()}) if given else problem
            if not _alike(sample, problem):
                raise OptionError(f"problem '{problem.name}': x0 of another shape or type; a batch is one program")
            guess = sample.initial_point if guesses is None else sample.check_point(_entry(guesses, k), "guesses")
        except TrajoptError as error:
            raise type(error)(f"sample {k}: {error}") from error
        problems.append(sample)
        points.append(guess)
    return Samples(problems, points)


def with_numbers(problem: Any, numbers: Mapping[int, Any]) -> Any:
    """The problem with other leaves at these places, which may be traced."""
    leaves, structure = jax.tree.flatten(problem)
    return jax.tree.unflatten(structure, [numbers.get(k, leaf) for k, leaf in enumerate(leaves)])


def _alike(sample: Any, problem: Any) -> bool:
    """Whether two problems share their programs."""
    (ours, kind), (others, other_kind) = ([*part] for part in (jax.tree.flatten(sample), jax.tree.flatten(problem)))
    return [kind, *((a.shape, a.dtype) for a in ours)] == [other_kind, *((b.shape, b.dtype) for b in others)]


_TAKES: dict[type, set[str]] = {
    LeastSquaresProblem: {"data"},
    OptimalControlProblem: {"x0", "start_time", "references", "weights"},
}


def _check_kind(problem: Any, given: Mapping[str, Any]) -> None:
    """Raise `OptionError` for what a problem of this kind cannot be given."""
    takes = _TAKES[type(problem)]
    for key in given:
        if key not in takes:
            raise OptionError(
                f"solve_batch: {key} is not for {type(problem).__name__}; it takes guesses and {', '.join(sorted(takes))}"
            )
    if "data" in given and problem.data is None:
        raise OptionError(
            f"solve_batch: problem '{problem.name}' has no data of its own; state it as residual(x, data) with data=..."
        )


def _count(problem: Any, guesses: Any, given: Mapping[str, Any]) -> int:
    """The length of all first axes."""
    arrays = {"guesses": guesses, **given} if guesses is not None else dict(given)
    sizes: dict[int, str] = {}
    for key, value in arrays.items():
        for leaf in jax.tree.leaves(value):
            if np.ndim(leaf) == 0:
                raise ShapeError(
                    f"solve_batch: {key} has an entry without an axis for the samples; expected (samples, ...)"
                )
            sizes.setdefault(np.shape(leaf)[0], key)
    if not sizes:
        raise OptionError(
            f"solve_batch: nothing differs between the samples of '{problem.name}'; give guesses, "
            f"{' or '.join(sorted(_TAKES[type(problem)]))} with a first axis for the samples, or use solve"
        )
    if len(sizes) > 1 or 0 in sizes:
        found = ", ".join(f"{size} ({key})" for size, key in sizes.items())
        raise ShapeError(f"solve_batch: first axes have lengths {found}; expected one number of samples, at least 1")
    return next(iter(sizes))


def _entry(value: Any, k: int) -> Any:
    """The k-th sample of an array, or of a pytree of arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[k], value)
