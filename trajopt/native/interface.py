"""How custom calls are stated to XLA, so that none of them is taken for one of the old, untyped interface.

JAX 0.10.2 writes the configuration of a custom call into an attribute, mhlo.backend_config, that StableHLO does not know and that
XLA's conversion loses in some functions of a large program. Compilation then ends with "No registered implementation for untyped
custom call to ..." (docs/troubleshooting.md). StableHLO has attributes of its own for it.
"""

from collections.abc import Callable
from typing import Any

from jax.extend.mlir import ir

_CONFIGURATION = "mhlo.backend_config"
_TYPED_INTERFACE = 4  # StableHLO's number of XLA's typed foreign-function interface


def with_stated_interface(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The lowering `rule` of a JAX primitive, with StableHLO's own attributes on its custom calls, in the functions that it makes
    for the bodies of loops too."""

    def lowered(ctx: Any, *operands: Any, **parameters: Any) -> Any:
        here, functions = ir.InsertionPoint.current.block, ctx.module_context.module.body
        places = [(block, len(block.operations)) for block in (here, functions)]
        results = rule(ctx, *operands, **parameters)
        for block, before in places:
            for operation in list(block.operations)[before:]:
                operation.operation.walk(_state)
        return results

    return lowered


def _state(operation: Any) -> Any:
    attributes = operation.attributes
    if operation.name == "stablehlo.custom_call" and _CONFIGURATION in attributes:
        attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _TYPED_INTERFACE)
        attributes["backend_config"] = attributes[_CONFIGURATION]
        del attributes[_CONFIGURATION]
    return ir.WalkResult.ADVANCE
