"""The rules of the code that a syntax tree shows: annotated signatures, short functions, behaviour where it belongs."""

import ast
import functools
import pathlib
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.check

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 60  # lines of a function
LONGEST_FILE = 420
ARRAYS = {"Array", "ArrayLike", "np.ndarray", "jax.Array", "jnp.ndarray"}  # without a shape
DIMENSIONED = ("Float", "Int", "Bool", "UInt8", "Shaped", "Num", "Inexact", "Key", "PRNGKeyArray", "Complex", "UInt32")
LAWS = {
    "RigidContact", "BoxedLCP", "SmoothedContact", "CompliantContact", "SpringDamperContact", "NoContact", "ContactLaw",
}  # fmt: skip
LAW_MODULES = ("trajopt/dynamics/contact/laws", "trajopt/dynamics/contact/compliant", "trajopt/dynamics/contact/smoothed")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def sources(folder: str) -> dict[str, ast.Module]:
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(), str(path))
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def functions(tree: ast.AST, public: bool = True, method: bool = False) -> Iterator[tuple[Function, bool, bool]]:
    """(function, whether it is public, whether it is a method) of all functions; nested ones are private."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            special = node.name.startswith("__") and node.name != "__init__" and node.name != "__call__"
            open_ = public and not special and (not node.name.startswith("_") or node.name.startswith("__"))
            yield node, open_, method
            yield from functions(node, False, False)
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, public and not node.name.startswith("_"), True)
        else:
            yield from functions(node, public, method)


def parameters(function: Function, method: bool) -> list[ast.arg]:
    a = function.args
    found = [*a.posonlyargs, *a.args]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    if method and not static:
        found = found[1:]
    return [*found, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]


def bare_arrays(annotation: ast.expr) -> bool:
    """Whether an array stands in the annotation without its shape: outside jaxtyping's brackets and Callable's."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return False
    if isinstance(annotation, ast.Subscript):
        head = ast.unparse(annotation.value).split(".")[-1]
        if head in DIMENSIONED or head == "Callable":
            return False
    if isinstance(annotation, ast.Name | ast.Attribute):
        return ast.unparse(annotation) in ARRAYS
    return any(bare_arrays(child) for child in ast.iter_child_nodes(annotation) if isinstance(child, ast.expr))


def unannotated(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for function, public, method in functions(tree):
        for parameter in parameters(function, method) if public else ():
            if parameter.annotation is None:
                yield parameter.lineno, f"{function.name}: parameter '{parameter.arg}' is not annotated"


def unshaped(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for function, public, method in functions(tree):
        if not public:
            continue
        given = [(p.arg, p.annotation) for p in parameters(function, method)] + [("return", function.returns)]
        for name, annotation in given:
            if annotation is not None and bare_arrays(annotation):
                yield function.lineno, f"{function.name}: '{name}' is an array without its shape"


def long(tree: ast.Module) -> Iterator[tuple[int, str]]:
    last = max((node.end_lineno or 0 for node in tree.body), default=0)
    if last > LONGEST_FILE:
        yield last, f"a file is one idea, of at most {LONGEST_FILE} lines"
    for function, _, _ in functions(tree):
        count = (function.end_lineno or 0) - function.lineno + 1
        if count > LONGEST:
            yield function.lineno, f"{function.name} has {count} lines, more than {LONGEST}"


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == name)


def law_questions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for call in calls(tree, "isinstance"):
        asked = {ast.unparse(n).split(".")[-1] for n in ast.walk(call.args[1]) if isinstance(n, ast.Name | ast.Attribute)}
        if asked & LAWS:
            yield call.lineno, f"asks which law it is: {ast.unparse(call)}"


def late_writes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """`object.__setattr__` outside `__post_init__` and what that defines."""
    allowed: set[int] = set()
    for function, _, _ in functions(tree):
        if function.name == "__post_init__":
            allowed |= {id(call) for call in calls(function, "object.__setattr__")}
    for call in calls(tree, "object.__setattr__"):
        if id(call) not in allowed:
            yield call.lineno, "object.__setattr__ outside __post_init__"


def capability_checks(tree: ast.Module) -> Iterator[tuple[int, str]]:
    return ((call.lineno, f"finds a capability by {ast.unparse(call)}") for call in calls(tree, "hasattr"))


def global_settings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for call in calls(tree, "jax.config.update"):
        yield call.lineno, f"changes JAX's global configuration: {ast.unparse(call)}"
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(ast.unparse(target).startswith(("jax.config.", "os.environ[")) for target in targets):
            yield node.lineno, f"changes the process's configuration: {ast.unparse(node)}"


ANYWHERE = ("trajopt/",)
RULES = {
    "annotated": (unannotated, ANYWHERE, ()),
    "shaped": (unshaped, ANYWHERE, ()),
    "short": (long, ANYWHERE, ()),
    "laws": (law_questions, ANYWHERE, LAW_MODULES),
    "frozen": (late_writes, ANYWHERE, ()),
    "typed": (capability_checks, ("trajopt/solvers/", "trajopt/problems/"), ()),
    # The command line and the worker of a sweep are processes of their own: they alone choose the precision.
    "global": (global_settings, ANYWHERE, ("trajopt/cli/__init__.py", "trajopt/solvers/sweeps/worker.py")),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps(rule):
    find, where, spared = RULES[rule]
    wrong = []
    for name, tree in sources("trajopt").items():
        if name.startswith(where) and not (spared and name.startswith(spared)):
            wrong += [f"{name}:{line}: {text}" for line, text in find(tree)]
    assert not wrong, f"{len(wrong)} places:\n" + "\n".join(wrong)


# What each rule finds and what it leaves alone.
EXAMPLES = {
    "annotated": ("def f(x): ...", "def f(x: int): ...\ndef _f(x): ...\nclass A:\n    def g(self, y: int): ..."),
    "shaped": (
        "def f(x: tuple[int, Array | None]): ...",
        "def f(x: Float[Array, ' n'], g: Callable[[Array], Array]) -> 'State': ...\ndef _f(x: Array): ...",
    ),
    "short": ("def f():\n" + "    pass\n" * LONGEST, "def f():\n" + "    pass\n" * (LONGEST - 1)),
    "laws": ("isinstance(law, (laws.RigidContact, int))", "isinstance(x, State)"),
    "frozen": (
        "def f(self):\n    object.__setattr__(self, 'a', 1)",
        "class A:\n    def __post_init__(self):\n        def put(k, v):\n            object.__setattr__(self, k, v)",
    ),
    "typed": ("hasattr(x, 'us')", "getattr(x, 'us')"),
    "global": ("jax.config.update('jax_enable_x64', True)", "jax.config.values['jax_enable_x64']"),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_what_breaks_it_and_nothing_else(rule):
    find = RULES[rule][0]
    bad, good = (ast.parse(text) for text in EXAMPLES[rule])
    assert len(list(find(bad))) == 1 and not list(find(good))


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Private names of the package that a test imports, reads from one of its modules or classes, or replaces."""
    known: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trajopt":
            for alias in node.names:
                known.add(alias.asname or alias.name)
                if private(alias.name):
                    yield node.lineno, f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Import):
            known |= {alias.asname or "trajopt" for alias in node.names if alias.name.split(".")[0] == "trajopt"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and ast.unparse(node.value).split(".")[0] in known:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr") and len(node.args) > 1:
            owner, name = ast.unparse(node.args[0]).split(".")[0], node.args[1]
            if owner in known and isinstance(name, ast.Constant) and private(str(name.value)):
                yield node.lineno, ast.unparse(node)


def test_tests_use_public_names_only():
    wrong = [f"{path}:{line}: {text}" for path, tree in sources("tests").items() for line, text in private_uses(tree)]
    assert not wrong, "\n".join(wrong)


def test_private_uses_are_seen():
    bad = "from trajopt.a import _b, c\nimport trajopt as t\nc._d()\nt.e._f\nm.setattr(c, '_g', 1)\n"
    good = "from trajopt.a import b\nself._x\nb.__name__\nother._y\nm.setattr(builtins, '__import__', 1)\n"
    assert sorted(line for line, _ in private_uses(ast.parse(bad))) == [1, 3, 4, 5]
    assert not list(private_uses(ast.parse(good)))


def timed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Assertions that bound a measured time from above: how long a machine takes is no property of the code."""
    words = ("perf_counter", "wall_time_s", "compile_time_s", "process_time", "monotonic", "time.time")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            for compare in (n for n in ast.walk(node.test) if isinstance(n, ast.Compare)):
                sides = [compare.left, *compare.comparators]
                for small, op, large in zip(sides, compare.ops, sides[1:]):
                    bounded = large if isinstance(op, ast.Gt | ast.GtE) else small
                    if not isinstance(op, ast.Eq | ast.NotEq) and any(word in ast.unparse(bounded) for word in words):
                        yield node.lineno, ast.unparse(compare)


def test_no_test_asserts_a_time():
    wrong = [f"{path}:{line}: {text}" for path, tree in sources("tests").items() for line, text in timed(tree)]
    assert not wrong, "\n".join(wrong)
    assert len(list(timed(ast.parse("assert s.wall_time_s < 3\nassert 0 < time.time() - a\nassert 9 > s.wall_time_s")))) == 2
