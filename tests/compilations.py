"""What JAX traces and compiles, counted by its own monitoring: through this door no test needs a private cache."""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax

TRACED = "/jax/core/compile/jaxpr_trace_duration"  # once for each function, also for its shapes alone
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # once for each program, also where the disk has it compiled


@dataclasses.dataclass
class Count:
    """Programs lowered while `compilations` was open."""

    names: set[str] = dataclasses.field(default_factory=set)
    programs: int = 0
    traces: int = 0


@contextlib.contextmanager
def compilations() -> Iterator[Count]:
    """Count what is traced and the programs that are made inside the block."""
    count = Count()

    def listener(event: str, duration: float, *, fun_name: str = "", **_) -> None:
        count.traces += event == TRACED
        if event == LOWERED:
            count.programs += 1
            count.names.add(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
