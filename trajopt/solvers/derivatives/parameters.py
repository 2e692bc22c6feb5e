"""The numbers that a solution is differentiated by, with the names by which problems are given them.

    x0, state_lower, state_upper          arrays
    references, weights                   {name of a residual: array}, as of `OptimalControlProblem.replace`
    model                                 {leaf of the `Model` of the `System`: array}
    dynamics, stage_cost, ...             of a function that is a pytree, such as a `jax.tree_util.Partial`: the pytree
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from trajopt.errors import OptionError, ShapeError, UnknownNameError
from trajopt.names import closest
from trajopt.problems.ocp import OptimalControlProblem
from trajopt.problems.residuals.base import Terms, is_task
from trajopt.problems.trajectory import TASKS
from trajopt.problems.tree import CONTROL

NUMBERS = ("x0", "state_lower", "state_upper")
OF_TERMS = {"references": "reference", "weights": "weight"}


def parameters(problem: OptimalControlProblem) -> dict[str, Any]:
    """What there is, by name, with its values."""
    found: dict[str, Any] = {key: np.asarray(getattr(problem, key), problem.dtype) for key in NUMBERS}
    terms = [term for task in _tasks(problem).values() for term in task.terms]
    for key, field in OF_TERMS.items():
        found[key] = {term.label: np.asarray(getattr(term, field)) for term in reversed(terms)}
    if problem.system is not None:
        model = problem.system.model
        names = [field.name for field in dataclasses.fields(model) if not field.metadata.get("static")]
        leaves = {name: leaf for name in names if jax.tree_util.all_leaves([leaf := getattr(model, name)])}
        found["model"] = {name: np.asarray(leaf) for name, leaf in leaves.items() if _is_number(leaf)}
    return found | _trees(problem)


def shifted(problem: OptimalControlProblem, shifts: Mapping[str, Any]) -> OptimalControlProblem:
    """The problem with shifts, which may be traced, added to these of its numbers; nothing is validated."""
    fields: dict[str, Any] = {key: getattr(problem, key) + shifts[key] for key in NUMBERS if key in shifts}
    fields |= {key: jax.tree.map(jnp.add, tree, shifts[key]) for key, tree in _trees(problem).items() if key in shifts}
    if any(key in shifts for key in OF_TERMS):
        by_field = {field: shifts.get(key, {}) for key, field in OF_TERMS.items()}
        fields |= {key: Terms(tuple(_moved(term, by_field) for term in task.terms)) for key, task in _tasks(problem).items()}
    if "model" in shifts:
        assert problem.system is not None
        model = problem.system.model
        moved = model.replace(**{key: getattr(model, key) + shift for key, shift in shifts["model"].items()})
        fields["dynamics"] = dataclasses.replace(problem.system, model=moved)
    return dataclasses.replace(problem, **fields, validate=False)


def checked(problem: OptimalControlProblem, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given for some of them, as arrays of their shapes.

    Raises `OptionError`, `UnknownNameError` or `ShapeError`, naming the culprit.
    """
    known, where = parameters(problem), f"problem '{problem.name}': "
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise OptionError(
                f"{where}'{key}' is none of the numbers that a solution is differentiated by; those are {', '.join(known)}"
            )
        if not isinstance(known[key], dict):
            found[key] = _of_shape(where + key, value, known[key])
            continue
        if not isinstance(value, Mapping):
            raise OptionError(f"{where}{key} is {value!r}; expected a dictionary {{name: array}}")
        for name in value:
            if name not in known[key]:
                what = "leaf of the model" if key == "model" else "residual"
                raise UnknownNameError(f"{where}{key} names no {what} '{name}'{closest(name, known[key])}")
        found[key] = {name: _of_shape(f"{where}{key}['{name}']", one, known[key][name]) for name, one in value.items()}
    return found


def chosen(problem: OptimalControlProblem, names: tuple[str, ...]) -> dict[str, Any]:
    """Those of these names, "x0", "weights" or "model.friction" for one of several, with their values.

    Raises `OptionError` or `UnknownNameError`.
    """
    known, found = parameters(problem), dict[str, Any]()
    for name in names:
        key, _, one = name.partition(".")
        checked(problem, {key: known.get(key, {}) if not one else {one: known.get(key, {}).get(one, 0.0)}})
        if one:
            found[key] = {**found.get(key, {}), one: known[key][one]}
        else:
            found[key] = known[key]
    return found


def _tasks(problem: OptimalControlProblem) -> dict[str, Any]:
    return {key: getattr(problem, key) for key in TASKS if is_task(getattr(problem, key))}


def _trees(problem: OptimalControlProblem) -> dict[str, Any]:
    """The functions of the user's own that are pytrees of numbers."""
    functions = {key: getattr(problem, key) for key in CONTROL.functions}
    own = {key: f for key, f in functions.items() if f is not None and f is not problem.system and not is_task(f)}
    return {key: f for key, f in own.items() if not jax.tree_util.all_leaves([f]) and all(map(_is_number, jax.tree.leaves(f)))}


def _is_number(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _moved(term: Any, shifts: Mapping[str, Mapping[str, Array]]) -> Any:
    """A residual with its shifts, by field and label."""
    new = {field: getattr(term, field) + own[term.label] for field, own in shifts.items() if term.label in own}
    return dataclasses.replace(term, **new) if new else term


def _of_shape(where: str, value: Any, like: Any) -> Any:
    """A value, or a pytree of values, with the shapes of another one; a number stands for an array of it."""
    ours, expected = (str(jax.tree.structure(tree)) for tree in (value, like))
    if ours != expected:
        raise ShapeError(f"{where} has the structure {ours}; expected {expected}")

    def one(given: Any, known: Any) -> Any:
        shape = np.shape(given)
        if shape and shape != np.shape(known):
            raise ShapeError(f"{where} has shape {shape}; expected {np.shape(known)}, or a number")
        return jnp.broadcast_to(jnp.asarray(given, known.dtype), np.shape(known))

    return jax.tree.map(one, value, like)
