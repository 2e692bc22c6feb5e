"""LAPACK calls in lowered programs, and those of them with more than one matrix."""

import contextlib
import math
import pathlib
import re
from collections.abc import Iterator

import jax

Calls = list[tuple[str, tuple[int, ...]]]
_CALL = re.compile(r"custom_call @(lapack_\w+)\(.* : \((?:tensor<((?:\d+x)*))")


def lapack_calls(program: jax.stages.Lowered | str) -> Calls:
    """(name, shape of the first operand) of every LAPACK call in the program as it is given to XLA."""
    found = []
    for line in (program if isinstance(program, str) else program.as_text()).splitlines():
        if "custom_call @lapack_" not in line:
            continue
        match = _CALL.search(line)
        assert match is not None, line
        found.append((match.group(1), tuple(int(size) for size in match.group(2).split("x") if size)))
    return found


def batched_lapack_calls(program: jax.stages.Lowered | str) -> Calls:
    """Those whose operand is more than one matrix: handlers of jaxlib may split these over the threads that run them."""
    return [(name, shape) for name, shape in lapack_calls(program) if math.prod(shape[:-2]) > 1]


def batched_in(folder: pathlib.Path) -> dict[str, Calls]:
    """Programs in a folder of JAX_DUMP_IR_TO that make batched LAPACK calls, and these calls."""
    programs = sorted(folder.rglob("*.mlir"))
    assert programs, f"no program in {folder}"
    calls = {path.name: batched_lapack_calls(path.read_text()) for path in programs}
    return {name: found for name, found in calls.items() if found}


@contextlib.contextmanager
def dumped_programs(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """All programs compiled within the block are written to `folder`, also those that the process has compiled before."""
    jax.clear_caches()
    before = jax.config.values["jax_dump_ir_to"]
    jax.config.update("jax_dump_ir_to", str(folder))
    try:
        yield folder
    finally:
        jax.config.update("jax_dump_ir_to", before)
