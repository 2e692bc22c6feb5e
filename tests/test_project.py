"""The project's own files: versions agree, scripts parse, nothing is claimed that is not there."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import tomllib

import pytest

import trajopt
from trajopt import problems, solvers

pytestmark = pytest.mark.check

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version():
    assert trajopt.__version__ == PROJECT["version"]


def test_extras_are_those_of_the_design():
    assert set(PROJECT["optional-dependencies"]) == {
        "ipopt", "robots", "viewer", "mesh", "distributed", "docs", "bench", "dev", "video", "learning", "jaxopt",
    }  # fmt: skip
    assert PROJECT["scripts"] == {"trajopt": "trajopt.cli:main"}


IMPORTED_AS = {"pillow": "PIL", "jaxlib": "jax"}  # jaxlib is named beside jax, whose compiled half it is


def test_the_package_imports_every_dependency_that_it_declares():
    imported = set()
    for path in (ROOT / "trajopt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    names = [re.split(r"[<>=~! ]", entry)[0] for entry in PROJECT["dependencies"]]
    assert [name for name in names if IMPORTED_AS.get(name, name) not in imported] == []


def test_the_licence_is_the_one_declared():
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0" in text


def test_scripts_are_executable_and_parse():
    for name in ("scripts/setup.sh", "scripts/check_wheel.sh", ".ci/run"):
        path = ROOT / name
        assert path.stat().st_mode & 0o111, f"{name} is not executable"
        subprocess.run(["bash", "-n", str(path)], check=True)


TARGETS = "demo check test test-all test-optimised every-problem lint bench docs docs-site wheel check-wheel".split()


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_the_targets(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "scripts/setup.sh" in done.stdout, done.stderr


def test_make_help_names_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = {name for line in makefile.splitlines() if line.startswith(".PHONY:") for name in line.split()[1:]}
    defined = {match.group(1) for match in re.finditer(r"^([a-z-]+):", makefile, re.MULTILINE)}
    # Under `make test` this make is a second one, which would name the folder that it enters.
    command = ["make", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    named = {line.split()[1] for line in done.stdout.splitlines()}
    assert targets == defined == named | {"help"}


def test_files_stay_short():
    long = [
        f"{path.relative_to(ROOT)}: {count}"
        for path in sorted((ROOT / "trajopt").rglob("*.py"))
        if (count := len(path.read_text().splitlines())) > 420
    ]
    assert not long, "files are one idea each, about 400 lines at most: " + ", ".join(long)


def test_public_names_exist():
    for module in (trajopt, problems, solvers):
        for name in module.__all__:
            assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trajopt.nothing  # noqa: B018


def test_every_problem_of_the_library_has_a_factory_and_a_known_solver():
    for name in problems.names():
        entry = problems.registry.entry(name)
        assert callable(entry.load()), name
        assert entry.solver in solvers.names() and entry.summary


def test_slow_cases_exist():
    lines = (ROOT / "tests" / "slow_cases.txt").read_text().splitlines()
    for line in (line for line in lines if line and not line.startswith("#")):
        file, _, test = line.partition("::")
        assert f"\ndef {test.partition('[')[0]}(" in (ROOT / file).read_text(), line
