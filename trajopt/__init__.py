"""Trajectory optimization and estimation for robots in contact, in JAX with a C++ core."""

from typing import Any

__version__ = "0.2.0"

_LAZY = {
    "load_model": "trajopt.models.registry",
    "control": "",
    "dynamics": "",
    "estimation": "",
    "models": "",
    "problems": "",
    "solvers": "",
    "viz": "",
}

__all__ = ["__version__", "control", "dynamics", "estimation", "load_model", "models", "problems", "solvers", "viz"]


def __getattr__(name: str) -> Any:
    """Subpackages and `load_model`, imported when first used, so that `import trajopt` is quick."""
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module 'trajopt' has no attribute '{name}'")
    if not _LAZY[name]:
        return importlib.import_module(f"trajopt.{name}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
