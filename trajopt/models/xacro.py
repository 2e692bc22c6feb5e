"""Expanding xacro files, templates from which URDF files are made, with the `xacro` package where it is installed.

The package evaluates the expressions in the file. `$(find NAME)` is answered by the same search as `package://NAME`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from trajopt.errors import ModelError
from trajopt.models.meshes import find_package
from trajopt.models.xml import fail

_NAMESPACES = (
    "{http://www.ros.org/wiki/xacro}",
    "{http://ros.org/wiki/xacro}",
    "{http://wiki.ros.org/xacro}",
    "xacro:",
)
_READ = ("link", "joint", "material")  # elements whose attributes the URDF reader, or its peers, would look at


def template_element(root: Element) -> Element | None:
    """The first element that only xacro understands: one of its own, or `${...}` and `$(...)` in a link or joint."""
    for element in root.iter():
        if str(element.tag).startswith(_NAMESPACES):
            return element
    for part in (part for tag in _READ for part in root.findall(tag)):
        for element in part.iter():
            if any("${" in value or "$(" in value for value in element.attrib.values()):
                return element
    return None


def expand(path: Path | None, template: Element, source: str, package_dirs: Sequence[str] = ()) -> bytes:
    """The URDF document that a xacro file makes; `template` is the element that shows what it is.

    Raises `ModelError`, with the remedy, when the package `xacro` is missing, when there is no file, and with
    xacro's reason when it refuses the file.
    """
    tag = str(template.tag).rpartition("}")[2]
    kind = f"this is a xacro file, a template of a URDF (<{tag}> is left to expand)"
    if path is None:
        fail(template, source, f"{kind}; expand it first, or load it from a path")
    try:
        xacro = importlib.import_module("xacro")
        substitution: Any = importlib.import_module("xacro.substitution_args")
    except ImportError:
        name = path.name.removesuffix(".xacro").removesuffix(".urdf")
        fail(
            template,
            source,
            f"{kind}; install the expander with `pip install xacro`, or expand the file first: "
            f"`xacro {path.name} > {name}_expanded.urdf`",
        )

    missing: list[str] = []

    def find(package: str, *_: object) -> str:
        folder = find_package(package, path.parent, package_dirs)
        if folder is None:
            raise ValueError(
                f"$(find {package}): there is no folder '{package}'; name the one above it in package_dirs"
            )
        return str(folder)

    before = getattr(substitution, "_eval_find", None)
    substitution._eval_find = find
    try:
        document = xacro.process_file(str(path))
    except Exception as error:  # whatever the expressions of the file raise
        reason = " ".join(str(error).split()) or type(error).__name__
        if missing:
            reason = f"$(find {missing[0]}): there is no folder '{missing[0]}'; name the one above it in package_dirs"
        raise ModelError(f"{source}: xacro refuses the file: {reason}") from None
    finally:
        substitution._eval_find = before
    return document.toxml().encode()
