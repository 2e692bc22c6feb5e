"""The project's own files: versions agree, scripts parse, nothing is claimed that is not there."""

from __future__ import annotations

import pathlib
import subprocess
import tomllib

import pytest

import trajopt
from trajopt import problems, solvers

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version():
    assert trajopt.__version__ == PROJECT["version"]


def test_extras_are_those_of_the_design():
    assert set(PROJECT["optional-dependencies"]) == {"ipopt", "robots", "viewer", "mesh", "docs", "bench", "dev"}
    assert PROJECT["scripts"] == {"trajopt": "trajopt.cli:main"}


def test_the_licence_is_the_one_declared():
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0" in text


def test_scripts_are_executable_and_parse():
    for name in ("scripts/setup.sh", ".ci/run"):
        path = ROOT / name
        assert path.stat().st_mode & 0o111, f"{name} is not executable"
        subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("target", ["demo", "test", "test-all", "lint", "bench", "docs", "docs-site"])
def test_make_knows_the_targets(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "scripts/setup.sh" in done.stdout, done.stderr


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
