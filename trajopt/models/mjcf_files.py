"""What an MJCF document reads and becomes, checked before MuJoCo compiles it.

MuJoCo runs in this process: a document that attaches itself ends it, and one that replicates a body a million times fills its
memory. So every file that the document includes or attaches is parsed here first by the guarded parser, files in a loop are
refused, the elements that the compiler would make are counted, and the files of meshes and height fields are looked at.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from trajopt.models.limits import (
    BODIES,
    ELEMENTS,
    KEYFRAMES,
    MESH_BYTES,
    SAMPLES,
    check_file,
    is_regular,
    read_bytes,
    short,
)
from trajopt.models.xml import check_finite, fail, parse_xml, read_file, required

_ASSETS = ("mesh", "hfield", "skin", "flexcomp", "texture")
_LEVELS = 20  # files inside each other


class _Documents:
    """A document and all that it names, parsed. `targets`: the files that an <include> or <model> means, by element."""

    def __init__(self, root: Element, path: Path | None):
        self.folder = path.parent if path else None
        self.roots: dict[Path, Element] = {}
        self.targets: dict[Element, list[Path]] = {}
        self.here = path.resolve() if path else Path()
        self._collect(root, self.here, ())

    def _collect(self, root: Element, here: Path, trail: tuple[Path, ...]) -> None:
        """Parse what a document names, and so on; `trail`: the documents that led here."""
        self.roots[here], trail = root, (*trail, here)
        for element in _references(root):
            verb = "include" if element.tag == "include" else "attach"
            kind = verb.removesuffix("e") + "ed"
            if self.folder is None:
                fail(element, f"a model given as text cannot {verb} files; load it from a path")
            name = required(element, "file")
            places = dict.fromkeys((here.parent, self.folder))
            targets = [(place / name).resolve() for place in places if is_regular(place / name)]
            if not targets:
                path = self.folder / name
                reason = "is no regular file" if _exists(path) else "does not exist"
                fail(element, f"the {kind} file '{short(str(path))}' {reason}")
            self.targets[element] = list(dict.fromkeys(targets))
            for path in self.targets[element]:
                if path in trail:
                    fail(element, f"the {kind} file '{path}' is already included: the files name each other in a loop")
                if len(trail) > _LEVELS:
                    fail(element, f"files name each other more than {_LEVELS} levels deep")
                if path not in self.roots:
                    self._collect(parse_xml(read_file(path), str(path)), path, trail)

    def size(self, here: Path, sizes: dict[Path, np.ndarray]) -> np.ndarray:
        """Number of elements, and of bodies, that a document makes."""
        if here not in sizes:
            everything = list(self._merged(here))
            models = {
                element.get("name", element.get("file", "")): sum(
                    self.size(path, sizes) for path in self.targets[element]
                )
                for element, _ in everything
                if element.tag == "model" and element in self.targets
            }
            total = np.zeros(2)
            for element, times in everything:
                total += times * np.array([1, element.tag == "body"])
                if element.tag == "flexcomp":
                    total += times * _product(element, "count")
                elif element.tag == "attach":
                    total += times * models.get(element.get("model", ""), 0)
            sizes[here] = total
        return sizes[here]

    def _merged(self, here: Path) -> Iterator[tuple[Element, float]]:
        """The elements of a document with those that it includes, and how many times each is replicated."""
        pending, seen = [(self.roots[here], 1.0)], {here}
        while pending:
            element, times = pending.pop()
            yield element, times
            if element.tag == "replicate":
                times *= _product(element, "count")
            pending += [(child, times) for child in element]
            for path in self.targets[element] if element.tag == "include" else ():
                if path not in seen:  # MuJoCo refuses a file that is included twice
                    seen.add(path)
                    pending.append((self.roots[path], times))


def check_files(root: Element, path: Path | None) -> None:
    """Raise `ModelError` for a document, or one that it includes or attaches, that MuJoCo cannot compile safely."""
    documents = _Documents(root, path)
    elements, bodies = documents.size(documents.here, {})
    if elements > ELEMENTS or bodies > BODIES:
        fail(
            root,
            f"it makes {elements:,.0f} elements, {bodies:,.0f} of them bodies, with replicated and attached ones; at most "
            f"{ELEMENTS:,} elements and {BODIES:,} bodies are read, to bound memory and time",
        )
    compilers = [compiler for document in documents.roots.values() for compiler in document.iter("compiler")]
    folders = {""} | {compiler.get(key, "") for compiler in compilers for key in ("meshdir", "assetdir", "texturedir")}
    for place, document in documents.roots.items():
        check_finite(document)
        _check_counts(document)
        places = [Path()] if path is None else [path.parent, place.parent]
        _check_assets(document, [place / folder for place in places for folder in folders])


def _references(document: Element) -> Iterator[Element]:
    """Elements that name another document: <include>, and <model> in <asset>."""
    yield from document.iter("include")
    for asset in document.iter("asset"):
        yield from (model for model in asset.iter("model") if model.get("file") is not None)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _product(element: Element, attribute: str) -> int:
    """The product of an attribute's whole numbers; 1 where MuJoCo will refuse them."""
    total = 1
    for word in element.get(attribute, "").split():
        try:
            total *= max(int(float(word)), 1)
        except (ValueError, OverflowError):
            return 1
        if total > 10**9:
            fail(element, f"attribute '{attribute}' is '{short(element.get(attribute, ''))}'; that is too many")
    return total


def _check_counts(document: Element) -> None:
    """Sizes that the compiler allocates for before it looks at anything else."""
    for element in document.iter():
        limits: dict[str, int] = {}  # of the products of attributes
        if element.tag == "size":
            small = {key for key in element.attrib if key == "nkey" or key.startswith("nuser_")}
            limits = {key: KEYFRAMES if key in small else SAMPLES for key in element.attrib if key != "memory"}
        elif element.tag == "hfield" and _product(element, "nrow") * _product(element, "ncol") > SAMPLES:
            fail(element, f"it has more than {SAMPLES:,} heights; make it coarser")
        elif element.tag == "mesh" and element.get("builtin") is not None:
            limits = {"params": 1000}
        elif element.tag in ("user", "numeric", "general", "motor", "position", "velocity"):
            limits = dict.fromkeys(("dim", "size", "nsample"), SAMPLES)
        for attribute, most in limits.items():
            if _product(element, attribute) > most:
                fail(element, f"attribute '{attribute}' is '{short(element.get(attribute, ''))}'; at most {most:,} are read")
    keys = sum(1 for keyframe in document.iter("keyframe") for _ in keyframe.iter("key"))
    if keys > KEYFRAMES:
        fail(document, f"it has {keys:,} keyframes; at most {KEYFRAMES:,} are read")


def _check_assets(document: Element, places: list[Path]) -> None:
    """The files of meshes and height fields, where they exist: regular, and within the limits."""
    for element in (element for asset in _ASSETS for element in document.iter(asset)):
        name = element.get("file", "")
        for path in {place / part for place in places for part in (name, Path(name).name)}:
            if name and _exists(path) and not path.is_dir():
                check_file(path, MESH_BYTES, "asset file")
                if path.suffix.lower() == ".png" and element.tag == "hfield":
                    _check_picture(element, path)


def _check_picture(element: Element, path: Path) -> None:
    """A PNG says in its first bytes how many points it unfolds to."""
    head = read_bytes(path, MESH_BYTES, "height field")[:24]
    width, height = struct.unpack(">II", head[16:24]) if len(head) == 24 else (0, 0)
    if width * height > SAMPLES:
        fail(element, f"its file '{path}' has {width} x {height} heights; at most {SAMPLES:,} are read; make it coarser")
