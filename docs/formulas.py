r"""Formulas of docstrings, which are plain text there (`nu = G lambda + g`, `x_{t+1} = f(x_t, u_t)`), typeset on the site.

`reference` marks them as the role `formula`, inside a line, and the directive `formula`, on lines of their own. They become
nodes of mathematics, which `mathml` draws as it draws those of the pages. The notation is that of the field's plain text:

    names           one letter is a variable, a Greek letter's name that letter, `dtau` a differential, other words are upright
    scripts         x_t, x_{t+1}, R_ref^T, M^-1, v^+, q*_t, and d' for the rate of d
    functions       sqrt(d), max(0, d), sum_{t<T} l(x_t), any word before a bracket
    relations       <= and >=, _|_ for complementarity
    on manifolds    x (+) dx and x (-) y
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

GREEK = set("alpha beta gamma delta kappa lambda mu nu phi rho sigma tau theta omega".split())
KNOWN = {"max": r"\max", "min": r"\min", "log": r"\log", "exp": r"\exp", "sum": r"\sum", "eps": r"\varepsilon"}
SIGNS = {
    "_|_": r"\perp", "(+)": r"\oplus", "(-)": r"\ominus", "<=": r"\le", ">=": r"\ge", "*": r"\cdot", "{": r"\{", "}": r"\}",
}  # fmt: skip
SHORT_WORDS = {"as", "at", "by", "if", "in", "is", "it", "of", "on", "or", "to"}
TOKEN = re.compile(
    r"(?P<gap> {2,})|(?P<space> )|(?P<fraction>\b\d+/\d+\b)|(?P<number>\d+(?:\.\d+)?)|(?P<sign>_\|_|\(\+\)|\(-\)|<=|>=)"
    r"|(?P<star>(?<=\w)\*(?=_))|(?P<script>[_^])|(?P<name>[A-Za-z]+)|(?P<other>.)"
)


def is_word(name: str) -> bool:
    """Whether a name is prose, or a quantity called by a word: upright, its letters no factors."""
    if name in GREEK or name in KNOWN or (name[0] == "d" and name[1:] in GREEK):
        return False
    return len(name) > 2 or name in SHORT_WORDS


def bracketed(text: str, start: int) -> int:
    """Where the bracket ends that opens at `start`."""
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] in "({") - (text[end] in ")}")
        if depth == 0:
            return end + 1
    raise ValueError(f"a bracket is not closed: {text[start:]}")


def script(text: str, start: int) -> tuple[str, int]:
    """(LaTeX of the index or exponent that begins at `start`, where it ends)."""
    if text[start : start + 1] in ("{", "("):
        end = bracketed(text, start)
        return as_latex(text[start + 1 : end - 1].replace("/", " / ")), end
    match = re.compile(r"-?\d+|[A-Za-z]+|(?<=\^)[+-](?!\w)").match(text, start)
    if match is None:
        raise ValueError(f"no index or exponent follows: {text[start:]}")
    inside = match[0]
    return {"T": r"\top"}.get(inside, as_latex(inside)) if text[start - 1] == "^" else as_latex(inside), match.end()


def as_latex(text: str) -> str:
    """A formula in plain text as LaTeX."""
    made: list[str] = []
    place = 0
    while place < len(text):
        match = TOKEN.match(text, place)
        assert match is not None
        kind, token, place = match.lastgroup, match[0], match.end()
        if kind == "gap":
            made.append(r"\quad ")
        elif kind == "star":
            made.append("^{*}")
        elif kind == "fraction":
            made.append(r"\frac{{{}}}{{{}}}".format(*token.split("/")))
        elif kind == "script":
            inside, place = script(text, place)
            made.append(f"{token}{{{inside}}}")
        elif kind == "name" and token == "sqrt" and text[place : place + 1] == "(":
            end = bracketed(text, place)
            made.append(rf"\sqrt{{{as_latex(text[place + 1 : end - 1])}}}")
            place = end
        elif kind == "name":
            latex, place = named(text, match.start())
            made.append(latex)
        else:
            made.append(SIGNS.get(token, token))
            made.append(" " if made[-1].startswith("\\") else "")
    return re.sub(r" +(?=[ _^])", "", "".join(made)).strip()


def named(text: str, start: int) -> tuple[str, int]:
    """(LaTeX of the name, or of the words, that begin at `start`; where they end)."""
    name = re.compile(r"[A-Za-z]+").match(text, start)[0]  # type: ignore[index]
    place = start + len(name)
    if name in GREEK:
        return f"\\{name} ", place
    if name in KNOWN:
        return f"{KNOWN[name]} ", place
    if name[0] == "d" and name[1:] in GREEK:
        return f"d\\{name[1:]} ", place
    if not is_word(name):
        return (rf"\dot{{{name}}}", place + 1) if text[place : place + 1] == "'" else (name, place)
    if text[place : place + 1] in ("(", "_", "^"):
        return rf"\mathrm{{{name}}}", place
    words = name
    while (match := re.compile(r" ([A-Za-z]+)\b(?![(_^])").match(text, place)) and is_word(match[1]):
        words, place = words + match[0], match.end()
    before = " " * (re.search(r"[\w),'] $(?<!\(-\) )(?<!\(\+\) )", text[:start]) is not None)
    after = " " * (re.match(r" [\w(|]", text[place:]) is not None)
    return rf"\text{{{before}{words}{after}}}", place


def as_aligned(lines: list[str]) -> str:
    """Formulas one below the other: aligned where further lines are indented, else at the first equals sign of each."""
    rows = textwrap.dedent("\n".join(lines)).splitlines()
    column = max(len(row) - len(row.lstrip()) for row in rows)
    if column:
        cells = [(row[:column].strip(), row[column:]) for row in rows]
        return r"\begin{align*}" + r"\\".join(f"&{as_latex(a)} & &{as_latex(b)}" for a, b in cells) + r"\end{align*}"
    if len(rows) == 1:
        return as_latex(rows[0])
    parts = [row.partition("=") for row in rows]
    return r"\begin{align*}" + r"\\".join(f"{as_latex(a)} &= {as_latex(b)}" for a, _, b in parts) + r"\end{align*}"


def formula_role(name: str, source: str, text: str, line: int, inliner: Any, **_: Any) -> tuple[list[Any], list[Any]]:
    try:
        latex = as_latex(text)
    except ValueError as error:
        return [], [inliner.reporter.error(f"not a formula: {text}: {error}", line=line)]
    return [nodes.math(source, latex)], []


class Formula(Directive):
    """A block of formulas."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            latex = as_aligned(list(self.content))
        except ValueError as error:
            raise self.error(f"not a formula: {error}") from None
        block = nodes.math_block(latex, latex, nowrap=False, number=None, label=None)
        block.source, block.line = self.state_machine.get_source_and_line(self.lineno)
        return [block]


def setup(app: Any) -> None:
    app.add_role("formula", formula_role)
    app.add_directive("formula", Formula)
