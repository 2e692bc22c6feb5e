"""A task: one call of `solve`, described so that another process can make it.

A problem of the library travels as its name and settings, everything else as a pickle: by cloudpickle, which also takes functions
that are written in a script, or, where that is not installed, by the standard library's.
"""

import dataclasses
import itertools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import trajopt
from trajopt.errors import MissingExtraError, OptionError
from trajopt.problems import registry as library
from trajopt.solvers.loop.base import check_solver
from trajopt.solvers.loop.fingerprint import fingerprint
from trajopt.solvers.registry import chosen_solver


@dataclasses.dataclass(frozen=True)
class Reference:
    """A problem of the library by its name and the settings that differ from their defaults.

    factory: of a problem that `problems.register` added, which other processes do not know.
    """

    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    factory: Callable[..., Any] | None = None

    def make(self) -> Any:
        """The problem."""
        return library.get(self.name, **self.settings) if self.factory is None else self.factory(**self.settings)


def reference(name: str, settings: Mapping[str, Any] | None = None) -> Reference:
    """What stands for a problem of the library. Raises `UnknownNameError` for a name or a setting that there is not."""
    factory = library.entry(name).factory
    library.check_settings(name, settings or {})
    return Reference(name, dict(settings or {}), None if isinstance(factory, str) else factory)


@dataclasses.dataclass(frozen=True)
class Task:
    """One call of `solve(problem, solver, x0=start, ...)`.

    Options:
        problem: a `Reference` to a problem of the library, or a problem itself.
        solver: the solver.
        gradient: gradient mode. Default: the problem's own.
        seed: seed of the solver.
        start: initial guess. Default: the problem's own.
        time_budget (s): largest time of the solve. Default: none.
        max_iterations: largest number of iterations. Default: the solver's own.
        label: what progress and tables call the task beside its solver.
    """

    problem: Any
    solver: Any
    gradient: str | None = None
    seed: int = 0
    start: Any = None
    time_budget: float | None = None
    max_iterations: int | None = None
    label: str = ""

    def key(self, problem: str | None = None) -> str:
        """What identifies its result, in this version of the package: everything but the label.

        problem: `fingerprint(self.problem)`, where it is at hand.
        """
        problem = fingerprint(self.problem) if problem is None else problem
        apart = ("problem", "label")
        values = [getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in apart]
        return fingerprint([trajopt.__version__, problem, *values])

    @property
    def title(self) -> str:
        """What it is, in one line."""
        parts = [self.solver.name, *filter(None, [self.gradient]), f"seed {self.seed}", *filter(None, [self.label])]
        return ", ".join(parts)


def grid(
    problems: Any,
    solvers: Any,
    *,
    settings: Mapping[str, Sequence[Any]] | None = None,
    gradients: Sequence[str | None] = (None,),
    seeds: Iterable[int] = (0,),
    starts: Iterable[Any] = (None,),
    time_budget: float | None = None,
    max_iterations: int | None = None,
) -> list[Task]:
    """Every problem, with every combination of settings, with every solver, gradient mode, seed and start, in this order.

    Arguments:
        problems: a name of the library, a `Reference`, a problem, or several of them.
        solvers: a name, which gets the options that the problem names for the solver that suits it, a solver, or several.
        settings: values of each setting of the library's problems, by its name.
        gradients: modes; None: the problem's own.
        starts: points or `Solution`s to start from; None: the problem's own guess.
        time_budget, max_iterations: of each task, as in `solve`.

    Raises `OptionError` and `UnknownNameError` for what cannot be solved, before anything is.
    """
    chosen, points, seeds = _several(solvers), list(starts), list(seeds)
    names = list(settings or {})
    tasks = list[Task]()
    for item in _several(problems):
        combinations = itertools.product(*(settings[name] for name in names)) if settings else [()]
        for values in combinations:
            changed = dict(zip(names, values, strict=True))
            if names and not isinstance(item, str):
                raise OptionError(f"settings belong to problems of the library; '{item.name}' is given as an object")
            ref = reference(item, changed) if isinstance(item, str) else item
            problem = ref.make() if isinstance(ref, Reference) else ref
            label = " ".join(f"{key}={value}" for key, value in changed.items())
            for solver, gradient in itertools.product(chosen, gradients):
                solver = chosen_solver(problem, solver) if isinstance(solver, str) else solver
                check_solver(problem, solver)
                if gradient is not None:
                    problem.check_gradient(gradient)
                for seed, (k, start) in itertools.product(seeds, enumerate(points)):
                    words = " ".join(filter(None, [label, f"start {k}" if len(points) > 1 else ""]))
                    tasks.append(Task(ref, solver, gradient, seed, start, time_budget, max_iterations, words))
    return tasks


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def pickled(value: Any) -> bytes:
    """`value` for another process. Raises `MissingExtraError` where that takes cloudpickle and it is not there."""
    try:
        import cloudpickle
    except ImportError:
        try:
            return pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise MissingExtraError(
                f"what is to be solved cannot be sent to another process ({error}); cloudpickle can also send functions that "
                "are written in a script: pip install 'trajopt-contact[distributed]'"
            ) from error
    return cloudpickle.dumps(value)
