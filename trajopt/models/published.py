"""Published robots by name: `load_model("robot_descriptions:NAME")`, through the package of that name.

Each of its modules (`go2_mj_description`, `panda_description`, ...) fetches its repository when it is first imported, keeps it,
and says where its MJCF or URDF file is.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path

from trajopt.errors import MissingExtraError, ModelError, UnknownNameError
from trajopt.names import closest

PACKAGE = "robot_descriptions"
PREFIX = f"{PACKAGE}:"
_FILES = ("MJCF_PATH", "URDF_PATH")
_FOLDERS = ("PACKAGE_PATH", "REPOSITORY_PATH")


def described(name: str) -> tuple[Path, tuple[str, ...]]:
    """The file of a robot by the name of its module, and folders in which its `package://` names are found.

    Raises `MissingExtraError` where the package is not installed, `UnknownNameError` with the closest names, and `ModelError`
    where the module cannot fetch its files or names none that is read.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise MissingExtraError(f"'{PREFIX}{name}' needs {PACKAGE}: pip install 'trajopt-contact[descriptions]'")
    known = [module.name for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)]
    known = [module for module in known if module.endswith("_description")]
    if name not in known:
        raise UnknownNameError(f"{PACKAGE} has no robot '{name}'{closest(name, known)}")
    try:
        module = importlib.import_module(f"{PACKAGE}.{name}")
    except Exception as error:  # whatever the package's download raises
        raise ModelError(f"{PACKAGE} cannot fetch '{name}': {type(error).__name__}: {error}") from error
    for kind in _FILES:
        if hasattr(module, kind):
            folders = [Path(getattr(module, folder)) for folder in _FOLDERS if hasattr(module, folder)]
            return Path(getattr(module, kind)), tuple(str(place) for folder in folders for place in (folder, folder.parent))
    raise ModelError(f"{PACKAGE}.{name} names neither an MJCF nor a URDF file")
