"""Which steps are smooth, and whether a function takes others.

A step is smooth where nothing acts on it by rows: no contact, no joint limit, no dry friction, no equality constraint. Whatever
takes it, it has derivatives of every order. A step with rows has a kink wherever one of them begins to act.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Jaxpr

from trajopt.dynamics.contact.laws.base import Law
from trajopt.dynamics.contact.rows import row_count
from trajopt.dynamics.model import Model

Arrays = TypeVar("Arrays")
_MARK = "trajopt: a step with rows under "


def is_smooth(law: Law, model: Model) -> bool:
    """Whether steps of the model under the law are smooth."""
    return row_count(law, model) == 0


def marked(law: Law, model: Model, x: Arrays) -> Arrays:
    """x as it is; `law_with_kinks` sees it in a function that takes a step from x, unless the step is smooth."""
    return x if is_smooth(law, model) else checkpoint_name(x, _MARK + law.name)


def law_with_kinks(f: Callable[..., Any], *arguments: Any) -> str | None:
    """The name of a law under which f takes steps that are not smooth; None where it takes none. f is traced at the arguments,
    for which `jax.ShapeDtypeStruct` will do."""
    for equation in _equations(jax.make_jaxpr(f)(*arguments).jaxpr):
        name = str(equation.params.get("name", ""))
        if name.startswith(_MARK):
            return name.removeprefix(_MARK)
    return None


def _equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """Those of a program and of the programs inside it: branches, loops, compiled functions, functions with a derivative rule."""
    for equation in jaxpr.eqns:
        yield equation
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: isinstance(leaf, Jaxpr | ClosedJaxpr)):
            if isinstance(part, Jaxpr | ClosedJaxpr):
                yield from _equations(part.jaxpr if isinstance(part, ClosedJaxpr) else part)
