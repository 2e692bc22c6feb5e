"""`trajopt run`: solve a problem of the library and write everything about it to a directory.

It warns where contacts were left out of a motion, and names the options that would have held them.
"""

import argparse
import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from rich.console import Console

from trajopt import files, problems, solvers, walltime
from trajopt.cli.progress import Progress, say
from trajopt.dynamics.collision.narrowphase import contact_count
from trajopt.errors import OptionError, TrajoptError
from trajopt.names import counted
from trajopt.occupied import occupying
from trajopt.result import status_name
from trajopt.solvers.loop.solution import Solution, amend_summary
from trajopt.solvers.registry import chosen_solver
from trajopt.solvers.solve import default_solver

PICTURES = (
    "animation.gif", "animation.mp4", "trajectory.png", "joints.png", "contacts.png", "costs.png", "estimation.png",
    "uncertainty.png", "convergence.png",
)  # fmt: skip
KEY = "dropped_contacts"  # of `Solution.residuals`: over all steps


def dropped_warning(problem: Any, solution: Solution) -> str | None:
    """A line that names max_contacts, max_limits or max_pairs and the smallest number that would have fitted; None when no step
    of the motion dropped anything.

    Of a problem that is not made of a `System` only the sum over all steps is known: that would have sufficed.
    """
    total = solution.residuals.get(KEY, 0.0)
    if not total > 0:
        return None
    system = getattr(problem, "system", None)
    if system is None or solution.xs is None or solution.us is None:
        kept = np.shape(solution.trajectory.get("impulse", np.zeros((0, 0, 3))))[1]
        return (
            f"{total:.0f} contacts or limits, all steps together, did not fit into the contact law and were ignored; it keeps "
            f"{kept} contacts a step: raise its max_contacts, {kept + int(total)} is enough (or max_limits)"
        )
    dropped, pairs = _counts(problem, solution)
    law, model = system.contact, system.model
    rows, unseen = int((dropped - pairs).max()), int(pairs.max())
    remedies = []
    contacts, limits = law.contact_rows(model), law.limit_rows(model)
    if rows and contacts < contact_count(model, law.pair_limit):
        remedies.append(f"max_contacts={contacts + rows} (now {contacts})")
    if rows and limits < len(model.topology.limited):
        remedies.append(f"max_limits={limits + rows} (now {limits})")
    options = " or ".join(remedies)
    if unseen:
        now = "the default" if law.max_pairs is None else law.max_pairs
        more = f"{law.max_pairs + unseen}" if law.max_pairs is not None else f"{unseen} more than that"
        options += f"{' and ' if options else ''}max_pairs={more} (now {now})"
    return (
        f"{int((dropped > 0).sum())} of {len(dropped)} steps had up to {int(dropped.max())} contacts or limits more than "
        f"{type(law).__name__} keeps, which ignored them; enough would be {options}"
    )


def _counts(problem: Any, solution: Solution) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " T"]]:
    """`StepInfo.dropped` and `dropped_pairs` of every step of the solution's motion."""
    parameters = np.zeros(problem.n_p) if solution.parameters is None else solution.parameters
    system = problem.system_at(jnp.asarray(parameters))

    def step(at):
        _, info = system.step(problem.as_state(at[0]), at[1])
        return info.dropped, info.dropped_pairs

    motion = jnp.asarray(solution.xs)[:-1], jnp.asarray(solution.us)
    dropped, pairs = jax.jit(lambda motion: jax.lax.map(step, motion))(motion)
    return np.asarray(dropped), np.asarray(pairs)


CHECKPOINT = "checkpoint.npz"


def chosen_settings(name: str, assignments: list[str], contact: str | None) -> dict[str, Any]:
    """The problem's settings that the command line changes."""
    values = problems.parse_settings(name, assignments)
    if contact is not None and "contact" in problems.settings(name):
        values |= problems.parse_settings(name, [f"contact={contact}"])
    return values


def make_problem(name: str, assignments: list[str], contact: str | None) -> Any:
    """The problem with the settings of the command line. Raises when it offers no choice of contact model."""
    values = chosen_settings(name, assignments, contact)
    problem = problems.get(name, **values)
    own = str(problem.meta.get("contact", "none"))
    if contact is not None and "contact" not in values and contact != own:
        raise OptionError(f"problem '{name}' offers no choice of contact model; it uses {own}, not {contact}")
    return problem


def folder_of(args: argparse.Namespace) -> pathlib.Path:
    """Where the run's files go."""
    return pathlib.Path("runs") / args.problem if args.out is None else args.out


def last_words(args: argparse.Namespace) -> str:
    """What a run that began at `args.since` (`time.time`) leaves behind when it is ended from outside."""
    summary = folder_of(args) / "summary.json"
    if summary.exists() and summary.stat().st_mtime >= args.since:
        return f"the solution is in {summary.parent}, its pictures are not complete"
    checkpoint = folder_of(args) / CHECKPOINT
    if not checkpoint.exists() or (not args.resume and checkpoint.stat().st_mtime < args.since):
        return "there was no point to save yet"
    return f"the last checkpoint is {checkpoint}: go on with --resume"


def command(args: argparse.Namespace, terminated: Callable[[], bool]) -> int:
    """Run the command; returns the exit status. terminated: whether a termination signal has come: then nothing is drawn."""
    console = Console(quiet=args.quiet)
    with walltime.part("load"):
        problem = make_problem(args.problem, args.settings, args.contact)
        solver = default_solver(problem) if args.solver is None else chosen_solver(problem, args.solver)
    with occupying(folder_of(args)):
        solution = _solved(args, console, problem, solver)
        return _told(args, console, problem, solution, terminated)


def _solved(args: argparse.Namespace, console: Console, problem: Any, solver: Any) -> Solution:
    """The solution, saved."""
    gradient = problem.defaults.gradient if args.gradient is None else args.gradient
    folder = folder_of(args)
    checkpoint = folder / CHECKPOINT
    say(console, f"{problem.name}: {solver.name}, {gradient} gradients, into {folder}")
    with walltime.part("solve"), Progress(console, args.quiet) as progress:
        solution = solvers.solve(
            problem,
            solver,
            gradient=gradient,
            callback=progress,
            seed=args.seed,
            max_iterations=args.max_iterations,
            checkpoint=checkpoint,
            resume=checkpoint if args.resume else None,
        )
    settings = {"settings": chosen_settings(args.problem, args.settings, args.contact)}  # to make the problem again: `view`
    try:
        solution.save(folder, settings)
    except KeyboardInterrupt:
        solution.save(folder, settings)  # a signal at this moment does not lose what was computed
        raise
    except OSError as error:
        raise TrajoptError(
            f"the result could not be saved into '{folder}' ({error.strerror or error}); make room, then give the same command "
            f"with --resume, which goes on from the last checkpoint that could be written"
        ) from error
    for name in PICTURES:
        (folder / name).unlink(missing_ok=True)  # of an earlier run
    return solution


def _told(
    args: argparse.Namespace, console: Console, problem: Any, solution: Solution, terminated: Callable[[], bool]
) -> int:
    """The exit status, after the report and the pictures."""
    folder = folder_of(args)
    with walltime.part("certificate"):
        report(console, problem, solution)
        warning = None if terminated() else dropped_warning(problem, solution)
    if warning is not None and not args.quiet:
        print(f"trajopt: warning: {warning}", file=sys.stderr)
    if terminated():
        say(console, "no pictures are drawn after a termination signal")
    else:
        draw(problem, solution, folder, args.animation)
    say(console, f"written: {', '.join(files.visible(folder))}")
    spent = walltime.spent()
    if spent:
        amend_summary(folder, {"wall_clock_s": {key: round(value, 4) for key, value in spent.items()}})
        say(console, walltime.sentence(spent))
    return 0 if solution.success else 1


def report(console: Console, problem: Any, solution: Solution) -> None:
    """Print how the run ended and what was recomputed at its point."""
    say(console, f"\n{status_name(solution.status)}: {solution.message.split(': ', 1)[-1]}")
    if "guess" in problem.meta:
        say(console, f"  started from {problem.meta['guess']}")
    limits = problem.limits
    if solution.goals:
        say(console, f"  goals: {solution.goals_in_words}")
    for name, goal in solution.goals.items():
        say(console, f"  goal {name:<23} {goal}: {'met' if goal.met else 'not met'}")
    for key, value in solution.residuals.items():
        if key.removeprefix("goal ").replace("_", " ") in solution.goals:
            continue
        allowed = f"  (allowed {limits[key]:.1e})" if key in limits else ""
        say(console, f"  {key.replace('_', ' '):<28} {value:12.4e}{allowed}")
    total = sum(solution.terms.values())
    for name, value in solution.terms.items():
        share = f"  ({value / total:.0%} of the terms)" if total > 0 else ""
        say(console, f"  cost of {name:<20} {value:12.4e}{share}")
    say(
        console,
        f"  {counted(solution.iterations, 'iteration')}, {counted(solution.evaluations, 'evaluation')}, "
        f"{solution.wall_time_s:.2f} s, "
        f"after {solution.compile_time_s:.2f} s of compiling",
    )
    described = problem.describe(solution)
    if described:
        say(console, described)


def draw(problem: Any, solution: Solution, folder: pathlib.Path, animated: bool) -> None:
    """Write the pictures that the run gives rise to (`docs/pictures.md`); `animated`, where a model moves: the animation, too."""
    with walltime.part("import"):
        from trajopt.viz import animation, plots
    name, motion, tolerance = problem.name, solution.trajectory, problem.violation_tolerance
    with walltime.part("plots"):
        drawn(plots.convergence, solution, folder / "convergence.png", tolerance=tolerance)
        if motion:
            title = f"{name}: goals {solution.goals_in_words}" if solution.goals else name
            options = {"model": problem.display.model, "title": title, **control_options(problem)}
            drawn(plots.trajectory, motion, folder / "trajectory.png", **options)
            drawn(plots.joints, motion, folder / "joints.png", **options)
            drawn(plots.contacts, motion, folder / "contacts.png", model=problem.display.model, title=name)
        of_problem = {"costs": plots.costs, "estimation": plots.estimation, "uncertainty": plots.uncertainty}
        for stem, plot in of_problem.items():
            drawn(functools.partial(plot, problem), solution, folder / f"{stem}.png", title=f"{name}: {stem}")
    if animated and problem.display.model is not None and "q" in motion:
        with walltime.part("animation"):
            drawn(functools.partial(animation.animate, problem.display.model), motion, folder / "animation.gif")


def control_options(problem: Any) -> dict[str, Any]:
    """Names, units and limits of a problem's controls, for plots; limits only where the problem bounds its controls itself."""
    options = {"control_names": problem.display.control_names, "control_units": problem.display.control_units}
    lower = getattr(problem, "control_lower", None)
    return options if lower is None else options | {"control_limits": (lower, problem.control_upper)}


def drawn(draw: Callable[..., Any], what: Any, path: pathlib.Path, **options: Any) -> bool:
    """Whether `draw(what, path, **options)` wrote its picture: it returns None where there is nothing to draw. What it raises
    becomes a warning: the run's results are saved and its exit status stands without the picture. A picture of an earlier run is
    not left in its place."""
    try:
        written = draw(what, path, **options) is not None
    except Exception as error:
        written = False
        print(f"trajopt: warning: {path.name} could not be drawn: {type(error).__name__}: {error}", file=sys.stderr)
    if not written:
        path.unlink(missing_ok=True)
    return written
