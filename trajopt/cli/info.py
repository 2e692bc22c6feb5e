"""`trajopt info`: what a model consists of and what takes its steps, what a problem asks; both where a name is that of both."""

import argparse
import inspect
from collections.abc import Callable

from trajopt import native, problems
from trajopt.cli.model_options import model_arguments
from trajopt.dynamics.model import Model
from trajopt.dynamics.system import System
from trajopt.errors import TrajoptError, UnknownNameError
from trajopt.models.describe import describe
from trajopt.models.registry import bundled_models, load_model_with_report
from trajopt.names import closest
from trajopt.problems import registry


def command(args: argparse.Namespace, terminated: Callable[[], bool]) -> int:
    """Run the command; returns the exit status. Raises `UnknownNameError` for what is neither, `ModelError` for a bad file."""
    texts = [describe_problem(args.name)] if args.name in problems.names() else []
    if not texts or args.name in bundled_models():
        try:
            model, report = load_model_with_report(args.name, **model_arguments(args))
            texts.append(f"{describe(model, report.warnings, overlaps=report.overlaps)}\n\n{describe_backend(model)}")
        except UnknownNameError:
            known = (*bundled_models(), *problems.names())
            raise UnknownNameError(f"there is no model, file or problem '{args.name}'{closest(args.name, known)}") from None
    print("\n\n".join(texts))
    return 0


def describe_backend(model: Model) -> str:
    """What takes the steps of a `System` of this model at default settings, and why, where that is not the compiled core."""
    try:
        system = System(model, dt=1e-3)
    except TrajoptError as error:
        return f"No System at default settings: {error}"
    if system.resolved_backend == "native":
        return f"Steps at default settings: by the compiled core ({native.instruction_set()})"
    reason = system.backend_reason or "TRAJOPT_BACKEND asks for it"
    return f"Steps at default settings: by JAX ({reason})"


def describe_problem(name: str) -> str:
    """Statement, solver and settings of a problem, each with its default and range. Nothing of it is built."""
    entry = registry.entry(name)
    lines = [f"{name}: {entry.summary} (solver: {entry.solver})", ""]
    lines += [f"  {line}".rstrip() for line in (inspect.getdoc(entry.load()) or "").splitlines()]
    settings, ranges = registry.settings(name), registry.setting_ranges(name)
    lines += ["", "Settings (--set KEY=VALUE)" if settings else "No settings"]
    width = max((len(key) for key in settings), default=0)
    for key, default in settings.items():
        shown = "" if default is inspect.Parameter.empty else repr(default)
        lines.append(f"  {key:<{width}}  {shown:<12}  {ranges.get(key, '')}".rstrip())
    return "\n".join(lines)
