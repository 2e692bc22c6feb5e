"""Loading models by bundled name or by path.

A file's format is told by its root element: <robot> is URDF, <mujoco> MJCF, <sdf> SDF. Files are read once per process
and again when they change; every call returns its own copy of the numbers, all copies share one topology.

Published robots by name: `load_model("robot_descriptions:NAME")`, through the package of that name.

Each of its modules (`go2_mj_description`, `panda_description`, ...) fetches its repository when it is first imported, keeps it,
and says where its MJCF or URDF file is.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.resources
import importlib.util
import os
import pkgutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from trajopt.dynamics.model import Model, ShapeType
from trajopt.errors import MissingExtraError, ModelError, OptionError, UnknownNameError
from trajopt.models.builder import ModelBuilder, ModelWarning
from trajopt.models.descriptions import DEFAULT_FRICTION, ShapeDescription
from trajopt.models.limits import is_regular, short
from trajopt.models.messages import grouped
from trajopt.models.mjcf import read_mjcf
from trajopt.models.sdf import read_sdf
from trajopt.models.sdf_shapes import ALL_BITS
from trajopt.models.self_collision import SelfCollision
from trajopt.models.urdf import read_urdf
from trajopt.models.xacro import expand, template_element
from trajopt.models.xml import parse_xml, read_file
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


_SUFFIXES = (".urdf", ".xacro", ".xml", ".mjcf", ".sdf", ".world")
_FORMATS = {"mujoco": "mjcf", "robot": "urdf", "sdf": "sdf"}
_loaded: dict[tuple, tuple[tuple, Model, LoadReport]] = {}


def bundled_models() -> list[str]:
    """Names of the models that come with the package, in alphabetical order."""
    return sorted(_bundled())


def bundled_file(name: str) -> Path:
    """Path of a bundled model's MJCF file, for other programs to read. Raises `UnknownNameError` with the closest names."""
    files = _bundled()
    if name not in files:
        raise UnknownNameError(f"there is no bundled model '{name}'{closest(name, files)}")
    return files[name]


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What loading a file found, besides the model.

    Attributes:
        format: "urdf", "mjcf" or "sdf".
        warnings: sentences.
        overlaps: pairs of links that overlap at the default configuration and were therefore left out of the contact pairs.
    """

    format: str
    warnings: tuple[str, ...]
    overlaps: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class _Options:
    """What a caller may choose, as `load_model` documents it."""

    floating_base: bool | None = None
    ground: bool = False
    package_dirs: tuple[str, ...] = ()
    self_collision: SelfCollision = SelfCollision()
    xacro: bool = False

    @classmethod
    def of(cls, floating_base, ground, package_dirs, self_collision, srdf, exclude, xacro=False) -> _Options:
        pairs = tuple(tuple(pair) for pair in exclude)
        chosen = SelfCollision(self_collision, None if srdf is None else str(srdf), pairs)
        return cls(floating_base, ground, tuple(str(folder) for folder in package_dirs), chosen, bool(xacro))


def load_model(
    name_or_path: str | Path,
    *,
    floating_base: bool | None = None,
    ground: bool = False,
    package_dirs: tuple[str | Path, ...] = (),
    self_collision: str = "auto",
    srdf: str | Path | None = None,
    exclude: Sequence[tuple[str, str]] = (),
    xacro: bool = False,
) -> Model:
    """A model by bundled name, from a URDF, MJCF or SDF file, or as "robot_descriptions:NAME" from the package of that name.

    - `floating_base`: None as the file says (URDF: fixed to the world); True gives the base a free joint if it has
      none; False fixes a free base where the file puts it.
    - `ground`: add the plane z = 0, called "ground", with friction 1, to a model without scenery of its own.
    - `package_dirs`: more folders in which to look for `package://` and `model://` names.
    - `self_collision`: which links of one robot collide. "auto": as the file says, in URDF and SDF without the links that
      overlap at the default configuration; "all": those too; "none": no links of one robot.
    - `srdf`: a file whose `<disable_collisions>` are left out.
    - `exclude`: pairs of links, by name, that do not collide; "world" is the fixed world.
    - `xacro`: expand a file whose name ends in .xacro with the package `xacro`. That runs the code in the file, so ask for it
      only where you trust the file; other files are never expanded.

    NumPy float64 leaves. What was left out or looks doubtful is issued as `ModelWarning`s. Raises `UnknownNameError`
    (with the closest names), `OptionError` and `ModelError` (file, element, reason).
    """
    options = _Options.of(floating_base, ground, package_dirs, self_collision, srdf, exclude, xacro)
    model, report = _load(name_or_path, options)
    _issue(report.warnings)
    return model


def load_model_with_report(
    name_or_path: str | Path,
    *,
    floating_base: bool | None = None,
    ground: bool = False,
    package_dirs: tuple[str | Path, ...] = (),
    self_collision: str = "auto",
    srdf: str | Path | None = None,
    exclude: Sequence[tuple[str, str]] = (),
    xacro: bool = False,
) -> tuple[Model, LoadReport]:
    """As `load_model`, with all that was found returned: format, warnings, overlapping links."""
    options = _Options.of(floating_base, ground, package_dirs, self_collision, srdf, exclude, xacro)
    return _load(name_or_path, options)


def load_model_from_string(
    text: str,
    format: str | None = None,
    name: str = "model",
    *,
    floating_base: bool | None = None,
    ground: bool = False,
    package_dirs: tuple[str | Path, ...] = (),
    self_collision: str = "auto",
    srdf: str | Path | None = None,
    exclude: Sequence[tuple[str, str]] = (),
) -> Model:
    """A model from the text of a document; `format` is "urdf", "mjcf", "sdf" or None (by its root element).

    Meshes are found by `package://` and absolute names only. Otherwise as `load_model`.
    """
    options = _Options.of(floating_base, ground, package_dirs, self_collision, srdf, exclude)
    model, report = _read(text.encode(errors="surrogateescape"), format, name, f"<{name}>", None, options)
    _issue(report.warnings)
    return model


def _load(name_or_path: str | Path, options: _Options) -> tuple[Model, LoadReport]:
    if isinstance(name_or_path, str) and name_or_path.startswith(PREFIX):
        name_or_path, folders = described(name_or_path.removeprefix(PREFIX))
        options = dataclasses.replace(options, package_dirs=(*options.package_dirs, *folders))
    path = _find(name_or_path)
    chosen = options.self_collision.srdf
    try:
        stamp = tuple(
            (s.st_mtime_ns, s.st_size) for s in (path.stat(), *([] if chosen is None else [Path(chosen).stat()]))
        )
    except (OSError, ValueError) as error:  # a name that no file system accepts
        name, reason = getattr(error, "filename", chosen), getattr(error, "strerror", None) or error
        raise ModelError(f"cannot read model file '{short(str(name))}': {reason}") from None
    key = (str(path), options)
    if key not in _loaded or _loaded[key][0] != stamp:
        _loaded[key] = (stamp, *_read(read_file(path), None, path.stem, str(path), path, options))
    _, model, report = _loaded[key]
    return jax.tree.map(np.copy, model), report


def _issue(messages: tuple[str, ...]) -> None:
    for message in messages:
        warnings.warn(message, ModelWarning, stacklevel=3)


def _bundled() -> dict[str, Path]:
    folder = importlib.resources.files("trajopt.models") / "bundled"
    return {
        Path(entry.name).stem: Path(str(entry))
        for entry in folder.iterdir()
        if entry.name.endswith(".xml") and not entry.name.startswith("_")
    }


def _find(name_or_path: str | Path) -> Path:
    if not isinstance(name_or_path, (str, Path)):
        raise OptionError(
            f"name_or_path is {name_or_path!r}; expected a bundled model's name or the path of a file"
        )
    text = str(name_or_path)
    bundled = _bundled()
    if text in bundled:
        return bundled[text]
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # "~name/..." of a user that this machine does not know
        raise ModelError(f"model file '{text}': there is no such user; give the path without '~'") from None
    if is_regular(path):
        return path.resolve()
    if path.suffix.lower() in _SUFFIXES or "/" in text or os.path.exists(path):
        kind = (
            "is a folder" if os.path.isdir(path) else "is no regular file" if os.path.exists(path) else "does not exist"
        )
        raise ModelError(f"model file '{short(text)}' {kind}; expected the path of a .urdf, .xml (MJCF) or .sdf file")
    raise UnknownNameError(f"there is no bundled model '{short(text)}' and no such file{closest(text, bundled)}")


def _read(
    content: bytes, format: str | None, name: str, source: str, path: Path | None, options: _Options
) -> tuple[Model, LoadReport]:
    root = parse_xml(content, source)
    kind = _FORMATS.get(str(root.tag))
    if kind is None:
        part = ", a part of an MJCF that other files include" if root.tag == "mujocoinclude" else ""
        raise ModelError(
            f"{source}: the root element is <{root.tag}>{part}; expected <robot> (URDF), <mujoco> (MJCF) or <sdf> (SDF)"
        )
    if format is not None and format != kind:
        if format not in _FORMATS.values():
            raise OptionError(f"format is '{format}'; expected 'urdf', 'mjcf' or 'sdf'")
        raise ModelError(f"{source}: format is '{format}', but the root element <{root.tag}> says '{kind}'")
    if kind == "mjcf":
        builder = read_mjcf(root, content, name, source, path)
    elif kind == "urdf":
        template = template_element(root)
        if template is not None:
            content = expand(path, template, source, options.package_dirs, options.xacro)
            source = f"{source} (expanded)"
            root = parse_xml(content, source)
        builder = read_urdf(root, name, source, path, options.package_dirs)
    else:
        builder = read_sdf(root, name, source, path, options.package_dirs)
    builder.self_collision = options.self_collision
    if options.floating_base is not None:
        builder.set_floating_base(options.floating_base)
    if options.ground:
        _add_ground(builder)
    model = builder.build()
    return model, LoadReport(kind, tuple(grouped(builder.warnings)), tuple(builder.overlaps))


def _add_ground(builder: ModelBuilder) -> None:
    taken = {shape.name for shape in builder.world_shapes}
    if "ground" not in taken:
        ground = ShapeDescription("ground", ShapeType.PLANE, np.zeros(3), friction=DEFAULT_FRICTION)
        if builder.format_leaves_collisions_open:  # SDF's bits keep links apart, not from the ground
            ground.contype = ground.conaffinity = ALL_BITS
        builder.world_shapes.append(ground)
