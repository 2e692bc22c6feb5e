"""What is not well-formed XML but read by the tolerant parsers that are common in robotics, made well-formed.

Every step looks at each byte a fixed number of times, whatever the document holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

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
