"""IPOPT through cyipopt: solves the nonlinear program of `nlp`, one call at a time, and reports every iteration.

Waechter and Biegler, On the implementation of an interior-point filter line-search algorithm, 2006. cyipopt is an extra; it is
imported when a solver needs it. IPOPT runs on the caller's thread: exceptions out of its callbacks, Ctrl-C among them, end
the call and are raised from it.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from trajopt.errors import MissingExtraError, OptionError
from trajopt.solvers.shooting.functions import LIMITED_MEMORY
from trajopt.solvers.shooting.nlp import Shooting

# What the return codes of IPOPT mean in the words of `Status`; any other code is `stalled`.
STATUSES = {
    0: "solved",
    1: "acceptable",
    2: "infeasible",
    6: "solved",
    -1: "max_iterations",
    -2: "line_search_failed",
    -4: "time_budget",
    -10: "infeasible",
    -13: "non_finite",
}
OWN_OPTIONS = {
    "tol": "tolerance",
    "max_iter": "max_iterations",
    "hessian_approximation": "hessian",
    "output_file": "nothing: the log is part of the Solution",
    "warm_start_init_point": "warm_start",
}
_ENDLESS = 2_000_000_000


@dataclasses.dataclass(frozen=True)
class Multipliers:
    """Multipliers of the rows and of the bounds of w: grad f + J^T rows - lower + upper = 0, lower, upper >= 0; all zero
    while unknown. `barrier` is the barrier parameter they belong to."""

    rows: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    barrier: float

    @classmethod
    def unknown(cls, program: Shooting) -> Multipliers:
        variables = np.zeros(program.layout.variables)
        return cls(np.zeros(program.layout.constraints), variables, variables, 0.1)

    @property
    def known(self) -> bool:
        return bool(np.any(self.rows) or np.any(self.lower) or np.any(self.upper))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call of IPOPT ended: its last point with multipliers, its code and message, and its log."""

    w: np.ndarray
    multipliers: Multipliers
    code: int
    message: str
    log: str


def require_ipopt() -> Any:
    """The module cyipopt. Raises `MissingExtraError` with the line that installs it."""
    try:
        import cyipopt
    except ImportError as error:
        raise MissingExtraError(
            "MultipleShooting needs IPOPT; install it with: "
            "sudo apt-get install coinor-libipopt-dev && pip install 'trajopt-contact[ipopt]'"
        ) from error
    return cyipopt


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `OptionError` for names and values that IPOPT does not know, or that belong to the solver."""
    cyipopt = require_ipopt()
    trial = cyipopt.Problem(n=1, m=0, problem_obj=_Nothing(), lb=np.zeros(1), ub=np.ones(1), cl=[], cu=[])
    try:
        trial.add_option("print_level", 0)
        for key, value in options.items():
            if key in OWN_OPTIONS:
                raise OptionError(f"ipopt_options: '{key}' is set by the solver; use {OWN_OPTIONS[key]}")
            try:
                trial.add_option(key, _plain(value))
            except TypeError as error:
                raise OptionError(
                    f"ipopt_options: IPOPT refuses {key} = {value!r}; see its list of options for names, types and ranges"
                ) from error
    finally:
        trial.close()


def _plain(value: Any) -> Any:
    """cyipopt tells integers, floats and strings apart by their exact type."""
    for kind, abstract in ((int, np.integer), (float, np.floating)):
        if isinstance(value, abstract):
            return kind(value)
    return ("yes" if value else "no") if isinstance(value, bool) else value


class _Nothing:
    """A program of one variable that nobody solves."""

    def objective(self, w: np.ndarray) -> float:
        return 0.0

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return np.zeros(1)


def solve(
    program: Shooting,
    w: Float[np.ndarray, " nw"],
    multipliers: Multipliers,
    tolerance: float,
    options: Mapping[str, Any],
    report: Callable[[np.ndarray, float, float], bool],
) -> Outcome:
    """Run IPOPT from w, and from the multipliers if they are known.

    `report(w, dual infeasibility, barrier)` is called at every new iterate; a false answer stops the run.
    """
    cyipopt = require_ipopt()
    callbacks = (_Callbacks if program.hessian_kind == LIMITED_MEMORY else _SecondOrderCallbacks)(
        program, report, cyipopt.CyIpoptEvaluationError
    )
    handle, path = tempfile.mkstemp(prefix="ipopt-", suffix=".log")
    os.close(handle)
    try:
        nlp = cyipopt.Problem(
            n=program.layout.variables,
            m=program.layout.constraints,
            problem_obj=callbacks,
            lb=program.lower,
            ub=program.upper,
            cl=program.constraint_lower,
            cu=program.constraint_upper,
        )
        try:
            for key, value in _options(program, multipliers, tolerance, path, options).items():
                nlp.add_option(key, _plain(value))
            found, info = nlp.solve(w, lagrange=multipliers.rows, zl=multipliers.lower, zu=multipliers.upper)
            if callbacks.error is not None:
                raise callbacks.error
        finally:
            nlp.close()
        with open(path, errors="replace") as stream:
            log = stream.read()
    finally:
        os.unlink(path)
    ended = Multipliers(info["mult_g"], info["mult_x_L"], info["mult_x_U"], callbacks.barrier)
    message = info["status_msg"]
    return Outcome(found, ended, int(info["status"]), message.decode() if isinstance(message, bytes) else message, log)


def _options(
    program: Shooting, multipliers: Multipliers, tolerance: float, path: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    own: dict[str, Any] = {
        "tol": tolerance,
        "constr_viol_tol": min(1e-4, 0.1 * program.problem.tolerance),
        "bound_relax_factor": min(1e-8, 0.01 * program.problem.tolerance),
        "max_iter": _ENDLESS,
        "print_level": 0,
        "sb": "yes",
        "output_file": path,
        "file_print_level": 5,
        "check_derivatives_for_naninf": "yes",
        "hessian_approximation": "limited-memory" if program.hessian_kind == LIMITED_MEMORY else "exact",
    }
    if multipliers.known:
        own |= {"warm_start_init_point": "yes", "mu_init": min(max(multipliers.barrier, 1e-9), 0.1)}
        own |= dict.fromkeys(("warm_start_bound_push", "warm_start_bound_frac", "warm_start_slack_bound_push"), 1e-9)
        own |= dict.fromkeys(("warm_start_slack_bound_frac", "warm_start_mult_bound_push"), 1e-9)
    return own | dict(options)


class _Callbacks:
    """What cyipopt asks for. Once an evaluation was interrupted every other one fails, so that IPOPT comes to its end.

    IPOPT 3.11 ends the process where an evaluation of constraints fails (it takes the norm of what it has not got); it gets NaNs.
    """

    def __init__(self, program: Shooting, report: Callable, failure: type[Exception]) -> None:
        self.program, self.report, self.failure = program, report, failure
        self.barrier, self.current = 0.1, np.zeros(0)
        self.error: BaseException | None = None  # what interrupted an evaluation; cyipopt forgets those of the Hessian

    def _guarded(self, evaluate: Callable[[], Any]) -> Any:
        if self.error is not None:
            raise self.failure
        try:
            return evaluate()
        except BaseException as error:
            self.error = error
            raise

    def objective(self, w: np.ndarray) -> float:
        return self._guarded(lambda: self.program.values(w).cost)

    def constraints(self, w: np.ndarray) -> np.ndarray:
        if self.error is not None:
            return np.full(self.program.layout.constraints, np.nan)
        return self._guarded(lambda: self.program.values(w).constraints)

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self._guarded(lambda: self.program.slopes(w).gradient)

    def jacobian(self, w: np.ndarray) -> np.ndarray:
        # IPOPT linearises at iterates only (and, in its derivative test, at the first one).
        self.current = w
        return self._guarded(lambda: self.program.slopes(w).jacobian)

    def jacobianstructure(self) -> tuple[np.ndarray, np.ndarray]:
        return self.program.layout.jacobian.rows, self.program.layout.jacobian.columns

    def intermediate(
        self, mode: int, iteration: int, cost: float, violation: float, dual: float, barrier: float, *rest: float
    ) -> bool:
        self.barrier = float(barrier)
        if iteration == 0:
            return True
        return self._guarded(lambda: self.report(self.current, float(dual), self.barrier))


class _SecondOrderCallbacks(_Callbacks):
    def hessianstructure(self) -> tuple[np.ndarray, np.ndarray]:
        return self.program.layout.hessian.rows, self.program.layout.hessian.columns

    def hessian(self, w: np.ndarray, multipliers: np.ndarray, factor: float) -> np.ndarray:
        return self._guarded(lambda: self.program.hessian(w, multipliers, factor))
