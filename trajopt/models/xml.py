"""Reading untrusted XML: entity bombs refused, line numbers kept, numbers checked.

Every complaint is a `ModelError` of the form `FILE, line N, <element name="...">: reason`.

What is not well-formed XML but read by the tolerant parsers that are common in robotics is made well-formed: every step of that
looks at each byte a fixed number of times, whatever the document holds.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder

import numpy as np
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser, ParseError
from jaxtyping import Float

from trajopt.errors import ModelError
from trajopt.models.limits import DEPTH, DOCUMENT_BYTES, ELEMENTS, LARGEST, UNBOUNDED, read_bytes, refuse, short

_NAME = rb"[A-Za-z_][\w.-]*"


def mended(data: bytes) -> tuple[bytes, tuple[str, ...]]:
    """(The document with line numbers kept, what was mended): text around the root element, an XML declaration that
    is not in front, `--` inside comments, prefixes without a declaration."""
    notes = []
    first, last = _span(data, b"<?xml", b"?>", 0)
    if first > 0 and not re.search(rb"encoding\s*=\s*[\"'](?!utf-?8)", data[first:last], re.I):
        data = data[:first] + _blank(data[first:last]) + data[last:]
        notes.append("an XML declaration that is not in front")
    calm = _with_comments(data, lambda body: re.sub(rb"-(?=-|$)", b" ", body))
    if calm != data:
        data = calm
        notes.append("'--' inside a comment")
    around = _without_surroundings(data)
    if around != data:
        data = around
        notes.append("text outside the root element")
    bare = _with_comments(data, _blank)
    used = set(re.findall(rb"[<\s/](%b):%b(?=[\s=>/])" % (_NAME, _NAME), bare)) - {b"xmlns", b"xml"}
    unknown = sorted(used - set(re.findall(rb"xmlns:(%b)\s*=" % _NAME, bare)))
    start = re.search(rb"<[A-Za-z_][\w.:-]*", bare)
    if unknown and start:
        declared = b"".join(b' xmlns:%b="%b"' % (name, name) for name in unknown)
        data = data[: start.end()] + declared + data[start.end() :]
        notes.append("prefixes without a declaration: " + ", ".join(name.decode() for name in unknown))
    return data, tuple(notes)


def _blank(text: bytes) -> bytes:
    return b"\n".join(b" " * len(line) for line in text.split(b"\n"))


def _span(data: bytes, opening: bytes, closing: bytes, start: int) -> tuple[int, int]:
    """Where the next stretch from `opening` to `closing` begins and ends; (-1, -1) if there is none."""
    first = data.find(opening, start)
    last = -1 if first < 0 else data.find(closing, first + len(opening))
    return (-1, -1) if last < 0 else (first, last + len(closing))


def _comments(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of every comment."""
    first, last = _span(data, b"<!--", b"-->", 0)
    while first >= 0:
        yield first, last
        first, last = _span(data, b"<!--", b"-->", last)


def _with_comments(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The document with the text inside its comments changed."""
    parts, end = [], 0
    for first, last in _comments(data):
        parts += [data[end : first + 4], change(data[first + 4 : last - 3]), b"-->"]
        end = last
    return b"".join([*parts, data[end:]])


def _without_surroundings(data: bytes) -> bytes:
    """The document with text before and after the root element blanked, comments there with it."""
    bare = _with_comments(data, _blank)
    root, end = re.search(rb"<[A-Za-z]", bare), data.rfind(b">") + 1
    if not root or not end:
        return data
    before, after = data[: root.start()], data[end:]
    prologue = re.sub(rb"<[?!][^<>]*>", b"", _with_comments(before, lambda _: b"").replace(b"<!---->", b""))
    if prologue.strip(b"\xef\xbb\xbf \t\r\n"):
        before = _blank(before)
    return before + data[root.start() : end] + (_blank(after) if after.strip() else after)


_OWNERS = ("link", "joint", "body")
_NAMES = frozenset("name class childclass file joint joint1 joint2 body body1 body2 geom geom1 geom2 site mesh".split())


class _LocatedElement(Element):
    """An element that knows its line in the document."""

    sourceline: int | None = None
    document: str | None = None  # what to call the document it comes from
    owner: str = ""  # the link, joint or body that it is a part of, "link 'a'"
    mended: tuple[str, ...] = ()  # of a root element: what `parse_xml` mended in the document


class _LineParser(DefusedXMLParser):
    """Writes the source line of every element into its `sourceline`, the document into `document`."""

    source = ""
    count = depth = 0

    def _start(self, tag, attributes):
        element = super()._start(tag, attributes)
        element.sourceline = self.parser.CurrentLineNumber
        element.document = self.source
        self.count += 1
        self.depth += 1
        if self.depth > DEPTH:
            fail(element, f"its nesting is too deep; at most {DEPTH} elements inside each other are read")
        if self.count > ELEMENTS:
            refuse(self.source, self.count, ELEMENTS, "XML elements and more", "split the file")
        return element

    def _end(self, tag):
        self.depth -= 1
        return super()._end(tag)


def parse_xml(content: str | bytes, source: str) -> Element:
    """The root element of an XML document.

    Document type declarations with entities, and external references, are refused. What is not well-formed but read by the
    tolerant parsers that are common in robotics is mended, and the root's `mended` says so (`trajopt.models.xml`).
    Raises `ModelError` with `source` (what to call the document) and the line, also for documents beyond `trajopt.models.limits`.
    """
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    if len(data) > DOCUMENT_BYTES:
        refuse(source, len(data), DOCUMENT_BYTES, "bytes", "split the file, and keep meshes in files of their own")
    try:
        return _parse(data, source)
    except ParseError as error:
        text, notes = mended(data)
        if notes:
            try:
                root = _parse(text, source)
                root.mended = notes  # type: ignore[attr-defined]
                return root
            except (ParseError, DefusedXmlException):
                pass
        line, column = error.position
        reason = str(error).split(":")[0]
        raise ModelError(f"{source}, line {line}, column {column}: not well-formed XML: {reason}") from None
    except DefusedXmlException as error:
        raise ModelError(
            f"{source}: declares XML entities or external references ({type(error).__name__}); these are refused "
            "because they can exhaust memory; remove the <!DOCTYPE> and <!ENTITY> declarations"
        ) from None
    except (ValueError, LookupError) as error:  # unknown encodings, embedded NUL
        raise ModelError(f"{source}: not readable as XML: {error}") from None


def _parse(data: bytes, source: str) -> Element:
    builder = TreeBuilder(element_factory=_LocatedElement)
    parser = _LineParser(target=builder, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    parser.source = source
    parser.feed(data)
    root = parser.close()
    _name_owners(root)
    return root


def _name_owners(root: Element) -> None:
    """Write into the parts of links, joints and bodies what they are a part of."""
    pending = [(child, "") for child in root]
    while pending:
        element, owner = pending.pop()
        element.owner = owner  # type: ignore[attr-defined]
        name = element.get("name")
        below = f"{element.tag} '{name}'" if element.tag in _OWNERS and name else owner
        pending += [(child, below) for child in element]


def read_file(path: Path) -> bytes:
    """The bytes of a file; `ModelError` when it is missing, no regular file, empty, too large or unreadable."""
    content = read_bytes(path, DOCUMENT_BYTES, "model file")
    if not content.strip():
        raise ModelError(f"{path}: the file is empty; expected a <robot> (URDF), <mujoco> or <sdf> document")
    return content


def located(element: Element, reason: str) -> str:
    """`FILE, line N, <tag name="...">: reason`, with the link, joint or body that the element is a part of."""
    document, line, name = getattr(element, "document", "?"), getattr(element, "sourceline", "?"), element.get("name")
    tag = short(str(element.tag).rpartition("}")[2])  # without its namespace
    named = "" if name is None else f' name="{short(name)}"'
    owner = getattr(element, "owner", "")
    inside = f" (in {owner})" if owner and owner not in reason else ""
    return f"{document}, line {line}, <{tag}{named}>: {short(reason, 2000)}{inside}"


def warn_mended(root: Element, warn: Callable[[str], None]) -> None:
    """Say what `parse_xml` mended in the document of `root`, if anything."""
    notes: tuple[str, ...] = getattr(root, "mended", ())
    if notes:
        warn(f"the file is not well-formed XML and read all the same: {'; '.join(notes)}")


def fail(element: Element, reason: str) -> NoReturn:
    """Raise `ModelError` for an element of a file."""
    raise ModelError(located(element, reason))


def required(element: Element, attribute: str) -> str:
    """An attribute that must be there and not be blank."""
    value = element.get(attribute)
    if value is None or not value.strip():
        fail(element, f"attribute '{attribute}' is missing")
    return value


def required_child(element: Element, tag: str) -> Element:
    """The first child with this tag."""
    child = element.find(tag)
    if child is None:
        fail(element, f"child element <{tag}> is missing")
    return child


def parse_numbers(text: str, count: int, element: Element, label: str) -> Float[np.ndarray, " count"]:
    """`count` finite numbers from whitespace-separated text."""
    try:
        values = [float(token) for token in text.split()]
    except ValueError:
        fail(element, f"{label} is '{short(text)}'; expected {count} number{'s' if count > 1 else ''}")
    if len(values) != count:
        fail(element, f"{label} has {len(values)} numbers ('{short(text)}'); expected {count}")
    if not all(math.isfinite(value) for value in values):
        fail(element, f"{label} is '{short(text)}'; every number must be finite")
    if any(abs(value) > LARGEST for value in values):
        fail(element, f"{label} is '{short(text)}'; no number may be above {LARGEST:g}")
    return np.array(values)


def numbers(
    element: Element,
    attribute: str,
    count: int,
    default: Sequence[float] | Float[np.ndarray, " count"] | None = None,
) -> Float[np.ndarray, " count"]:
    """An attribute of `count` finite numbers, or `default` when it is absent (an error if that is None)."""
    text = element.get(attribute)
    if text is None:
        if default is None:
            fail(element, f"attribute '{attribute}' is missing")
        return np.array(default, float)
    return parse_numbers(text, count, element, f"attribute '{attribute}'")


def number(element: Element, attribute: str, default: float | None = None) -> float:
    """An attribute that is one finite number."""
    return float(numbers(element, attribute, 1, None if default is None else [default])[0])


def bound(text: str | None, default: float, element: Element, label: str) -> float:
    """A limit, or `default` without text; infinite ones may be written out, or as a number of `UNBOUNDED` and more."""
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        fail(element, f"{label} is '{short(text or '')}'; expected a number")
    return math.copysign(math.inf, value) if abs(value) >= UNBOUNDED else value


def check_finite(root: Element) -> None:
    """Raise `ModelError` for the first attribute of numbers that are not all finite (documents compiled elsewhere).

    Ranges may be infinite. Attributes that are names are left alone.
    """
    for element in root.iter():
        for attribute, text in element.attrib.items():
            if attribute in _NAMES or ("nan" not in text.lower() and "inf" not in text.lower()):
                continue
            try:
                values = [float(token) for token in text.split()]
            except ValueError:
                continue
            if any(math.isnan(x) or (math.isinf(x) and not attribute.endswith("range")) for x in values):
                fail(element, f"attribute '{attribute}' is '{short(text)}'; every number must be finite")
