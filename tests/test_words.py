"""One spelling, British, in prose and in names of our own; names that a library, a source or the interface fixes stay."""

import pathlib
import re
from collections import Counter

import pytest

pytestmark = pytest.mark.check

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("trajopt", "tests", "benchmarks", "docs", "scripts")
AMERICAN = re.compile(
    r"(?!(?:re|over|under|out|down|up)?siz|priz|seiz|capsiz|horiz)[a-z]+(?:iz(?:e|es|ed|ing|ation|ations|er|ers|able)|yz(?:e|es|ed|ing))"
    r"|behaviors?|colors?|colored|centers?|centered|favors?|gray|labeled|labeling|modeling|modeled|canceled"
    r"|neighbors?|neighboring|fibers?"
)
# Parts of names that the interface, a library or the title of a source fixes, and whole names of libraries.
FIXED = {
    "linearize", "linearized", "linearization", "linearizations", "randomized", "optimizer", "optimizers", "optimization",
    "optimizations", "optimize", "optimized", "minimize", "parametrize", "parametrized", "parameterization", "parallelization",
    "finalizer", "addfinalizer", "quantize", "serializer", "color", "colors",
    "sanitize", "fsanitize", "sanitized", "sanitizers",  # the compiler's tools
}  # fmt: skip
LIBRARIES = {
    "canonicalize_dtype", "mj_normalizeQuat", "symmetrize_input", "minimize_scalar", "center",
    "initialize",  # jax.distributed
    "vectorization_mode",  # gymnasium
    "tokenize",
    "deserialize", "deserialize_cdr", "serialize_cdr",  # rosbags
    "xla_cpu_enable_concurrency_optimized_scheduler", "synchronization_internal",
}  # fmt: skip


def american(text: str) -> Counter[str]:
    """Words and identifiers with a part in American spelling, as they stand."""
    found: Counter[str] = Counter()
    for token in re.findall(r"[A-Za-z_]+", text):
        parts = re.sub(r"([a-z])([A-Z])", r"\1_\2", token).lower().split("_")
        if any(AMERICAN.fullmatch(part) and part not in FIXED and not part.endswith("size") for part in parts):
            found[token] += 1
    return found


def texts() -> dict[str, str]:
    files = [path for folder in FOLDERS for kind in ("py", "md", "sh") for path in (ROOT / folder).rglob(f"*.{kind}")]
    files += [path for path in ROOT.iterdir() if path.suffix == ".md" or path.name in ("Makefile", "pyproject.toml")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in files if path.name != "test_words.py"}


def test_spelling_is_british():
    found = {name: set(american(text)) - LIBRARIES for name, text in texts().items()}
    wrong = {name: sorted(words) for name, words in found.items() if words}
    assert not wrong, wrong


def test_american_spelling_is_seen():
    bad = "initialize the solver's behavior_name, analyzed at its center; memoizerState"
    assert set(american(bad)) == {"initialize", "behavior_name", "analyzed", "center", "memoizerState"}
    assert not american("the size of a resized horizon, a prize; neighbouring centres initialised; linearise, maximum")
