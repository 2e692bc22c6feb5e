"""How thoroughly XLA optimises a program."""

import enum
import functools

import jax

_NO_OPTIONS: dict[str, bool | int] = {}


class Effort(enum.Enum):
    """How a program is compiled for a CPU; the value holds XLA's options. On other devices all are `FULL`.

    The rollout of catapult, 500 steps with a collision of boxes: `FULL` takes 3 s of processor time to compile and 0.08 s to run,
    `LIGHT` 1.7 s and the same 0.08 s (without XLA's fusion by MLIR; what is vectorised over a batch may run half as fast), and
    `QUICK` 0.45 s and 0.16 s.
    """

    FULL = _NO_OPTIONS  # no empty tuple: in Python 3.11.2, Debian's, a member of that value holds an `object()`
    LIGHT = {"xla_cpu_use_fusion_emitters": False}
    QUICK = {
        "xla_cpu_use_fusion_emitters": False,
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_parallel_codegen_split_count": 1,
    }


@functools.cache
def known_options(effort: enum.Enum) -> dict[str, bool | int]:
    """Those of an effort's options that this XLA has, for `jax.jit(compiler_options=...)`; none where the device is no CPU."""
    if jax.default_backend() != "cpu":
        return {}
    return {name: value for name, value in effort.value.items() if _is_known(name, value)}


@functools.cache
def _is_known(name: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True
