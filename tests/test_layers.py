"""The architecture: layers import downwards only, files in the order of the design, and importing does nothing."""

import ast
import functools
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.check

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "trajopt"
LAYERS = ["base", "native", "dynamics", "models", "problems", "solvers", "control", "estimation", "learning", "viz", "cli"]
BASE = {"errors", "files", "names", "options", "occupied", "result", "walltime", "__init__"}
# Order of the design inside a folder; a file or folder that is not named is held to the absence of cycles only.
ORDER = {
    "dynamics": (
        "precision arguments branches model state rigid_body collision contact compiled_pairs compiled gradients "
        "integrators report compiled_step linearization backend system policies"
    ).split(),
    "dynamics.rigid_body": "spatial lie configuration kinematics rnea crba aba derivatives energy".split(),
    "dynamics.collision": "features primitives convex terrain broadphase evaluation narrowphase".split(),
    "dynamics.contact": "laws inputs ncp rows solve sweeps step".split(),
    "dynamics.contact.laws": "base smoothed forces compliant free rigid".split(),
    "dynamics.gradients": "options mode implicit complementarity bounce substituted sampled modes".split(),
    "problems": (
        "arguments programs signature trajectory residuals horizons guesses checks replacing task_expansion expansions oracle "
        "least_squares ocp library"
    ).split(),
    "solvers": "loop subproblems ddp estimation least_squares shooting sampling hybrid registry sweeps".split(),
    "control": "recording plants mujoco_plant receding_horizon".split(),
    "estimation": (
        "recording bags readers tosses moments sensors loss parameter inertial_parameters parameters packing prediction "
        "uncertainty checks gauss_newton impacts flight samples smoothing window moving_horizon "
        "identification identify report examples"
    ).split(),
    "learning": (
        "environment draws networks episodes returns curves slopes rollouts algorithm ppo shac tasks algorithms trainer transfer"
    ).split(),
    "viz": "plots animation viewer".split(),
}


@functools.cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts)] = ast.parse(path.read_text(), str(path))
    return found


def layer(module: str) -> str:
    parts = module.split(".")
    return "base" if len(parts) == 1 or parts[1] in BASE else {"__main__": "cli"}.get(parts[1], parts[1])


def imported(module: str, tree: ast.Module, known: set[str]) -> set[str]:
    """Modules of the package that `module` imports, anywhere in it, type-checking blocks left out."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {id(child) for statement in node.body for child in ast.walk(statement)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in known or f"{inner}.__init__" in known else base)
    found = {f"{name}.__init__" if f"{name}.__init__" in known else name for name in found}
    return {name for name in found if name in known}


@functools.cache
def graph() -> dict[str, set[str]]:
    return {name: imported(name, tree, set(modules())) for name, tree in modules().items()}


def test_every_module_belongs_to_a_layer():
    assert {layer(name) for name in graph()} <= set(LAYERS)


def test_layers_import_downwards_only():
    wrong = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others
        if LAYERS.index(layer(other)) > LAYERS.index(layer(name))
    ]
    assert not wrong, "\n".join(wrong)


def test_files_of_a_folder_keep_the_order_of_the_design():
    wrong = []
    for folder, order in ORDER.items():
        prefix = f"trajopt.{folder}."
        for name, others in graph().items():
            for other in others:
                if name.startswith(prefix) and other.startswith(prefix):
                    own, theirs = (module.removeprefix(prefix).split(".")[0] for module in (name, other))
                    if own in order and theirs in order and order.index(theirs) > order.index(own):
                        wrong.append(f"{name} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles():
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "cycle: " + " -> ".join(path[path.index(name) :] + (name,))
        if name not in done:
            for other in graph()[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph():
        visit(name, ())


def test_the_check_sees_a_forbidden_import():
    tree = ast.parse("from trajopt import solvers\ndef f():\n    from trajopt.viz.animation import speed\n")
    found = imported("trajopt.dynamics.rigid_body.rnea", tree, set(modules()) | {"trajopt.viz.animation"})
    assert found == {"trajopt.solvers.__init__", "trajopt.viz.animation"}


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_trajopt_is_light():
    out = run_python("import sys, trajopt; print([m for m in ('jax', 'matplotlib', 'mujoco') if m in sys.modules])")
    assert out.strip() == "[]"


def test_the_numerical_layers_do_not_import_presentation():
    heavy = ("matplotlib.pyplot", "rich", "jaxopt")
    code = f"import sys; from trajopt import dynamics, models, problems, solvers; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_importing_every_module_changes_no_jax_setting_and_starts_no_backend():
    names = [name.removesuffix(".__init__") for name in modules() if "__main__" not in name]
    code = (
        "import importlib, os, jax\n"
        "read = lambda: {k: v for k, v in os.environ.items() if k.startswith(('JAX', 'XLA'))}\n"
        "before, environment = dict(jax.config.values), read()\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "assert dict(jax.config.values) == before\n"
        "assert read() == environment\n"
        "from jax._src import xla_bridge\n"
        "print(bool(xla_bridge._backends))"
    )
    assert run_python(code).strip() == "False"
