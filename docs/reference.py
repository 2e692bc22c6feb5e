"""The API reference, made from docstrings: one page a class with its options as a table, functions on the page of their package.

The pages docs/api/*.md say what is shown and in which order, in two kinds of fenced blocks:

    ```{classes} trajopt.dynamics            ```{functions} trajopt.dynamics
    System: step, linearize, nq              rnea
    RigidContact                             aba
    ```                                      ```

Behind a class stand the methods and properties to show. `write_class_pages` writes a page for each class into docs/api/classes,
which is not part of the repository, and `expand_blocks` replaces the blocks by a table of links and by entries of functions.

A docstring lists options as

    Options:
        name (unit): meaning.
            continued here.
        name, name: meaning of both.

under the headings Options, Arguments or Attributes. Options that a class inherits are described by the docstring of the base.
Lines indented by four elsewhere are code where they are Python, else formulas. Inside a line formulas stand between dollar signs,
code between backticks; neither goes on in the next line. How plain text becomes a formula is in `formulas`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

HEADINGS = ("Options", "Arguments", "Attributes")
BLOCK = re.compile(r"^```\{(classes|functions)\} *(\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ENTRY = re.compile(r"^    (\w+(?:, \w+)*)(?: \(([^)]*)\))?: +(.*)$")
CODE = re.compile(r"``[^`]+``|`[^`]+`|\$[^$`]+\$")  # code, or a formula
MARKUP = re.compile(r"[\\*|_]")
POWER = re.compile(r"(?<=[A-Za-z])\^(\d[\d.]*\d|\d)")  # of a unit
ARRAY_LIKE = re.compile(
    r"Shaped\[Array, '...'\](?: \| (?:Shaped\[ndarray, '...'\]|(?:numpy\.)?(?:bool|number)|bool|int|float|complex))+"
)
LONG_SIGNATURE = 12  # arguments; of more, those with a default stand in the table alone


@dataclasses.dataclass(frozen=True)
class Option:
    """A row of a table: what a docstring says of an option, and its default as it is written in code."""

    name: str
    unit: str
    default: str
    meaning: str


# -- docstrings to reStructuredText ------------------------------------------------------------------------------------


def as_text(line: str) -> str:
    """A line of a docstring in reStructuredText: backticks are code, dollar signs formulas, other signs stand for themselves."""
    parts, end = [], 0
    for match in CODE.finditer(line):
        inside = match[0].strip("`$")
        marked = f":formula:`{inside}`" if match[0][0] == "$" else f"``{inside}``"
        parts += [as_prose(line[end : match.start()]), f"{marked}\\ "]
        end = match.end()
    return "".join([*parts, as_prose(line[end:])])


def as_prose(text: str) -> str:
    """Text without code and formulas; powers of units are raised."""
    return POWER.sub(r"\\ :sup:`\1`\\ ", MARKUP.sub(r"\\\g<0>", text))


def kind_of(line: str, previous: str) -> str:
    """What a line of a docstring belongs to: text, an item of a list, or lines that stand for themselves."""
    if not line.strip():
        return previous
    if line.startswith("    "):
        return "block"
    if line.startswith(("- ", "* ")) or (line.startswith("  ") and previous == "item"):
        return "item"
    return "text"


def is_python(lines: list[str]) -> bool:
    try:
        ast.parse(textwrap.dedent("\n".join(lines)))
    except SyntaxError:
        return False
    return True


def as_paragraphs(lines: list[str]) -> list[str]:
    """A docstring in reStructuredText: text, lists, and indented lines as code or formulas."""
    kinds = list(itertools.accumulate(lines, lambda kind, line: kind_of(line, kind), initial="text"))[1:]
    made: list[str] = []
    for kind, group in itertools.groupby(zip(kinds, lines, strict=True), key=lambda pair: pair[0]):
        rows = [row for _, row in group]
        made.append("")
        if kind == "block":
            made += ["::" if is_python(rows) else ".. formula::", "", *rows, ""]
        elif kind == "item":
            made += [row[:2] + as_text(row[2:].strip()) for row in rows]
        else:
            made += [as_text(row.strip()) for row in rows]
    return [*made, ""]


def split_docstring(text: str) -> tuple[list[str], list[str], dict[str, tuple[str, str]]]:
    """(lines before the list of options, lines after it, {option: (unit, meaning)}) of a docstring."""
    before: list[str] = []
    after: list[str] = []
    entries: dict[str, tuple[str, str]] = {}
    names: list[str] = []
    listing = False
    for line in text.splitlines():
        if line.rstrip(":") in HEADINGS and line.endswith(":"):
            listing, names = True, []
        elif listing and line.startswith("    "):
            if match := ENTRY.match(line):
                names = match[1].split(", ")
                entries |= dict.fromkeys(names, (match[2] or "", match[3]))
            elif names:
                entries |= {name: (entries[name][0], f"{entries[name][1]} {line.strip()}") for name in names}
            else:
                raise ValueError(f"expected 'name: meaning', found '{line.strip()}'")
        else:
            listing = listing and not line.strip()
            (after if entries else before).append(line)
    return before, after, entries


# -- what a class takes ------------------------------------------------------------------------------------------------


def code_of(value: Any) -> str:
    """A default as it is written in code."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f for f in dataclasses.fields(value) if getattr(value, f.name) != f.default]
        return f"{type(value).__name__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in fields)})"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and (1e4 <= value < float("inf") or 0 < value < 1e-2) and float(f"{value:.0e}") == value:
        mantissa, _, exponent = f"{value:.0e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return repr(value)


def parameters_of(cls: type) -> dict[str, inspect.Parameter]:
    """The arguments that a class is made with; of a class that makes no sense of its own, such as a protocol, none."""
    if getattr(cls, "_is_protocol", False):
        return {}
    found = dict(list(inspect.signature(cls.__init__).parameters.items())[1:])  # type: ignore[misc]
    return {name: p for name, p in found.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def default_of(cls: type, parameter: inspect.Parameter) -> str:
    """The default of an argument, empty where it has none."""
    field = {f.name: f for f in dataclasses.fields(cls)}.get(parameter.name) if dataclasses.is_dataclass(cls) else None
    if field is not None and field.default_factory is not dataclasses.MISSING:
        return code_of(field.default_factory())
    return "" if parameter.default is parameter.empty else code_of(parameter.default)


def options_of(cls: type) -> tuple[list[str], list[str], list[Option]]:
    """(what a class's docstring says before and after its options, the options: its own first, then those of its bases)."""
    prose: tuple[list[str], list[str]] = ([], [])
    described: dict[str, tuple[str, str]] = {}
    for base in cls.__mro__:
        if not base.__module__.startswith("trajopt") or not vars(base).get("__doc__"):
            continue
        before, after, entries = split_docstring(inspect.cleandoc(vars(base)["__doc__"]))
        prose = prose if any(prose) else (before, after)
        described = (
            entries | described if base is cls else described | {k: v for k, v in entries.items() if k not in described}
        )
    taken = parameters_of(cls)
    names = [name for name in described if name in taken or not taken or name in vars(cls).get("__annotations__", {})]
    if "Attributes:" in (cls.__doc__ or ""):
        names = list(described)
    names += [name for name in taken if name not in names and not name.startswith("_")]
    options = []
    for name in names:
        unit, meaning = described.get(name, ("", ""))
        default = default_of(cls, taken[name]) if name in taken else ""
        options.append(Option(name, unit, default, meaning))
    return *prose, options


def is_result(cls: type) -> bool:
    """Whether a class is one that functions return: its page lists attributes without defaults."""
    return "Attributes:" in (cls.__doc__ or "")


# -- pages -------------------------------------------------------------------------------------------------------------


def blocks(text: str) -> Iterator[tuple[str, str, list[tuple[str, list[str]]]]]:
    """(kind, package, [(name, members)]) of every block of a page."""
    for match in BLOCK.finditer(text):
        rows = [row.partition(":") for row in match[3].splitlines() if row.strip()]
        yield (
            match[1],
            match[2],
            [(name.strip(), [m.strip() for m in rest.split(",") if m.strip()]) for name, _, rest in rows],
        )


def signature(cls: type) -> str:
    """The arguments of a class with their defaults, without types."""
    taken = parameters_of(cls)
    if not taken or is_result(cls):
        return ""
    short, parts, starred = len(taken) <= LONG_SIGNATURE, [], False
    for parameter in taken.values():
        default = default_of(cls, parameter)
        if default and not short:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            parts.append("*")
        parts.append(f"{parameter.name}={default}" if default else parameter.name)
    return f"({', '.join(parts if short else [*parts, '**options'])})"


def sentence(text: str) -> str:
    """A meaning as it stands in a table: its first word in capitals where that is a word."""
    first = re.match(r"(a|[a-z]{2,})(?=[ ,:])(?! =)", text)
    return text[0].upper() + text[1:] if first and first[0] not in ("nu", "nv", "nq", "ny", "kp", "kd") else text


def rows_of(options: list[Option]) -> list[list[Option]]:
    """Options with one meaning, one after the other, share a row."""
    rows: list[list[Option]] = []
    for option in options:
        if rows and option.meaning and (rows[-1][0].meaning, rows[-1][0].unit) == (option.meaning, option.unit):
            rows[-1].append(option)
        else:
            rows.append([option])
    return rows


def defaults(row: list[Option]) -> str:
    """The default of a row's options, or each of them where they differ."""
    known = [f"``{option.default}``" if option.default else "required" for option in row]
    return ", ".join(known if len(set(known)) > 1 else known[:1])


def table(options: list[Option], result: bool) -> list[str]:
    """The options as a table in reStructuredText; columns without entries are left out."""
    rows = rows_of(options)
    columns = {"Name": [", ".join(f"``{option.name}``" for option in row) for row in rows]}
    if any(option.unit for option in options):
        columns["Unit"] = [as_prose(row[0].unit) for row in rows]
    if not result:
        columns["Default"] = [defaults(row) for row in rows]
    columns["Meaning"] = [as_text(sentence(row[0].meaning)) for row in rows]
    lines = [".. list-table::", "   :header-rows: 1", "   :class: options", ""]
    for cells in [list(columns), *zip(*columns.values(), strict=True)]:
        lines += [f"   {'* -' if k == 0 else '  -'} {cell}" for k, cell in enumerate(cells)]
    return [*lines, ""]


def class_page(package: str, name: str, members: list[str]) -> str:
    """The page of a class, in reStructuredText."""
    cls = getattr(importlib.import_module(package), name)
    before, after, options = options_of(cls)
    lines = [
        name,
        "=" * len(name),
        "",
        f".. py:currentmodule:: {package}",
        "",
        f".. py:class:: {name}{signature(cls)}",
        "",
    ]
    body = ["::", "", f"    from {package} import {name}", "", *as_paragraphs(before)]
    if options:
        result = is_result(cls)
        body += [f".. rubric:: {'Attributes' if result else 'Options'}", "", *table(options, result)]
    if statuses := getattr(cls, "_name_to_item", None):
        body += [line for name, item in statuses.items() for line in (f"- ``{name}``: {as_text(str(cls[item]))}", "")]
    body += as_paragraphs(after)
    if members:
        body += [".. rubric:: Methods and properties", ""]
    lines += [f"   {line}" if line else "" for line in body]
    for member in members:
        value = inspect.getattr_static(cls, member)
        kind = "automethod" if callable(value) or isinstance(value, (classmethod, staticmethod)) else "autoproperty"
        lines += [f"   .. {kind}:: {member}", ""]
    return "\n".join(lines) + "\n"


def page_name(package: str, name: str) -> str:
    return f"{package}.{name}"


def summary(value: Any) -> str:
    """The first sentence of a docstring, without its sources."""
    first = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    first = re.sub(r" \((?=[^()]*(?:eq\.|eqs\.|App\.|Smoothed|arXiv|algorithm))[^()]*\)", "", first)
    return re.split(r"(?<=[a-z0-9)`])\. (?=[A-Z`])", first, maxsplit=1)[0].rstrip(" .:;")


def write_class_pages(app: Any) -> None:
    """A page for each class that the pages of the packages name; pages of other classes are removed."""
    source = pathlib.Path(app.srcdir) / "api"
    if not source.is_dir():
        return
    folder = source / "classes"
    folder.mkdir(exist_ok=True)
    wanted = set()
    for page in sorted(source.glob("*.md")):
        for kind, package, rows in blocks(page.read_text()):
            for name, members in rows if kind == "classes" else []:
                path = folder / f"{page_name(package, name)}.rst"
                wanted.add(path)
                text = class_page(package, name, members)
                if not path.exists() or path.read_text() != text:
                    path.write_text(text)
    for path in set(folder.glob("*.rst")) - wanted:
        path.unlink()


def expand_blocks(app: Any, name: str, source: list[str]) -> None:
    """Replace the blocks of a page by a table of links to classes, and by entries of functions."""
    if not name.startswith("api/") or name.startswith("api/classes/"):
        return

    def expanded(match: re.Match[str]) -> str:
        kind, package, rows = next(blocks(match[0]))
        module = importlib.import_module(package)
        if kind == "functions":
            entries = "\n".join(f".. autofunction:: {package}.{row}" for row, _ in rows)
            return f"```{{eval-rst}}\n.. py:currentmodule:: {package}\n\n{entries}\n```"
        lines = ["| class | |", "|---|---|"]
        for row, _ in rows:
            text = re.sub(r"\$([^$]+)\$", r"{formula}`\1`", summary(getattr(module, row))).replace("|", "\\|")
            lines.append(f"| [`{row}`](classes/{page_name(package, row)}.rst) | {text} |")
        tree = "\n".join(f"classes/{page_name(package, row)}" for row, _ in rows)
        return "\n".join(lines) + f"\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```"

    source[0] = BLOCK.sub(expanded, source[0])


# -- autodoc -----------------------------------------------------------------------------------------------------------


def plain_docstrings(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings of functions and methods are plain text; their arguments become a list."""
    before, after, entries = split_docstring("\n".join(lines))
    listed = []
    for argument, (unit, meaning) in entries.items():
        listed += [f"- ``{argument}``{f' ({as_prose(unit)})' if unit else ''}: {as_text(meaning)}"]
    lines[:] = [*as_paragraphs(before), *listed, "", *as_paragraphs(after)]


def short_types(app: Any, what: str, name: str, value: Any, options: Any, arguments: str, returned: str) -> Any:
    """Arrays are called Array in signatures, not by the module they come from."""
    names = r"(jaxlib\._jax|jax|numpy|jaxtyping)\.(?=(Array|ndarray|Float|Int|Bool|Shaped)\b)"
    return tuple(part and ARRAY_LIKE.sub("ArrayLike", re.sub(names, "", part)) for part in (arguments, returned))


def setup(app: Any) -> None:
    app.connect("builder-inited", write_class_pages)
    app.connect("source-read", expand_blocks)
    app.connect("autodoc-process-docstring", plain_docstrings)
    app.connect("autodoc-process-signature", short_types)
