"""Files that a comment, a docstring or a page names are there."""

import io
import pathlib
import re
import tokenize

import pytest

pytestmark = pytest.mark.check

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("trajopt", "tests", "benchmarks", "docs", "scripts")
FOREIGN = ("jaxlib/",)  # sources of a library
NAMED = re.compile(r"(?<![\w./*<{}$~-])((?:[\w-]+/)*[\w-]+\.(?:py|h|cc|sh))\b(?![*\w])")


def files(*endings: str) -> list[pathlib.Path]:
    return sorted(path for folder in FOLDERS for ending in endings for path in (ROOT / folder).rglob(f"*.{ending}"))


def remarks_of_cpp(text: str) -> str:
    return "\n".join(line.partition("//")[2] for line in text.splitlines())


def remarks_of_python(text: str) -> str:
    """Comments, and strings that stand alone: docstrings."""
    remarks, last = [], tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        alone = last in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and alone):
            remarks.append(token.string)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            last = token.type
    return "\n".join(remarks)


def is_there(name: str, beside: pathlib.Path, known: set[str]) -> bool:
    """Whether a file of the project ends in this path, or one is there seen from the file that names it."""
    return any(path.endswith(f"/{name}") for path in known) or (beside.parent / name).exists()


def missing(texts: dict[pathlib.Path, str]) -> list[str]:
    known = {f"/{path.relative_to(ROOT).as_posix()}" for path in files("py", "h", "cc", "sh")}
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts.items()
        for name in NAMED.findall(text)
        if not name.startswith(FOREIGN) and not is_there(name, path, known)
    ]


def test_files_named_in_remarks_are_there():
    texts = {path: remarks_of_cpp(path.read_text()) for path in files("h", "cc")}
    texts |= {path: remarks_of_python(path.read_text()) for path in files("py")}
    assert not missing(texts)


def test_files_named_on_pages_are_there():
    """A page names files of its reader's too, without a folder."""
    pages = [*files("md"), *ROOT.glob("*.md")]
    texts = {path: path.read_text() for path in pages if path.name != "CHANGELOG.md"}
    assert not [line for line in missing(texts) if "/" in line.partition(": ")[2]]


def test_slow_cases_are_cases_of_tests_that_are_there():
    lines = [line for line in (ROOT / "tests" / "slow_cases.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(set(lines))
    for line in lines:
        path, _, test = line.partition("[")[0].partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(), line


def test_a_file_that_is_not_there_is_seen():
    place = ROOT / "trajopt" / "native" / "step.h"
    assert missing({place: remarks_of_cpp("int a;  // as in dynamics/nowhere.py, nothing.h and step.h")}) == [
        "trajopt/native/step.h: dynamics/nowhere.py",
        "trajopt/native/step.h: nothing.h",
    ]
    assert missing({place: remarks_of_python('"""As gone.py."""\na = "other.py"  # lost.h\n')}) == [
        "trajopt/native/step.h: gone.py",
        "trajopt/native/step.h: lost.h",
    ]
