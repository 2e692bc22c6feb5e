"""Expanding xacro files, templates from which URDF files are made, with the `xacro` package where it is installed.

The package evaluates the expressions in the file as Python, and `xacro.load_yaml` in them reads any file: a template is a
program. So only files whose name ends in .xacro are handed to it, and only if the caller asks for it.
`$(find NAME)` is answered by the same search as `package://NAME`.
"""

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


def expand(
    path: Path | None, template: Element, source: str, package_dirs: Sequence[str] = (), trusted: bool = False
) -> bytes:
    """The URDF document that a xacro file makes; `template` is the element that shows what it is.

    `trusted`: the caller asks for the file's expressions to be evaluated. Raises `ModelError`, with the remedy, when
    that is not so, when the file's name does not end in .xacro, when the package `xacro` is missing, and with
    xacro's reason when it refuses the file.
    """
    tag = str(template.tag).rpartition("}")[2]
    kind = f"this is a xacro file, a template of a URDF (<{tag}> is left to expand)"
    if path is None:
        fail(template, f"{kind}; expand it first, or load it from the path of a .xacro file with xacro=True")
    name = path.name.removesuffix(".xacro").removesuffix(".urdf")
    outside = f"expand the file first: `xacro {path.name} > {name}_expanded.urdf`"
    if path.suffix.lower() != ".xacro":
        why = "files of other names are never expanded, because that runs the code in them"
        remedy = f"if you trust it, rename it and load it with xacro=True, or {outside}"
        fail(template, f"{kind}, but its name does not end in .xacro: {why}; {remedy}")
    if not trusted:
        remedy = f"if you trust it, load it with xacro=True (--xacro on the command line), or {outside}"
        fail(template, f"{kind}; expanding it runs the code in it: {remedy}")
    try:
        xacro = importlib.import_module("xacro")
        substitution: Any = importlib.import_module("xacro.substitution_args")
    except ImportError:
        fail(template, f"{kind}; install the expander with `pip install xacro`, or {outside}")

    def find(package: str, *_: object) -> str:
        folder = find_package(package, path.parent, package_dirs)
        if folder is None:
            raise ValueError(f"$(find {package}): there is no folder '{package}'; name the one above it in package_dirs")
        return str(folder)

    before = getattr(substitution, "_eval_find", None)
    substitution._eval_find = find
    try:
        document = xacro.process_file(str(path))
    except Exception as error:  # whatever the expressions of the file raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{source}: xacro refuses the file: {reason}") from None
    finally:
        substitution._eval_find = before
    return document.toxml().encode()
