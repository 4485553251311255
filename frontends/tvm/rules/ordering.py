"""Operators that keep running results along an axis, or put elements in order."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.rules import axis, direct, dtype, flag
from tilewright.ir.graph_ops.operands import axis_of
from tilewright.ir.nodes import Value

_RETURNED = ("both", "values", "indices")


def _scan(name: str) -> Rule:
    scan = direct(name, axis=axis(), dtype=dtype(), exclusive=flag(False))

    def rule(emit: Emitter, call: Call) -> Result:
        """Without an axis the operand counts as flattened."""
        data, along = call.single(), call.integer("axis", None)
        if along is None:
            data, along = emit.reshape(data, (data.tensor.size,)), 0
        return scan(emit, Call((data,), {**call.taken("dtype", "exclusive"), "axis": along}))

    return rule


def ranked(emit: Emitter, call: Call, data: Value, k: int, ascending: bool) -> Result:
    """The first k along an axis, all of them where k is below one: values, indices, or both."""
    along, returned = (
        axis_of(call.integer("axis", -1), data.tensor.rank, "axis"),
        call.choice("ret_type", _RETURNED, "both"),
    )
    k = k if k >= 1 else data.tensor.shape[along]
    index = call.dtype("dtype") or "i32"
    both = emit.values("topk", (data,), k=k, axis=along, is_ascend=ascending, dtype=index)
    return both if returned == "both" else both[_RETURNED.index(returned) - 1]


RULES: Mapping[str, Rule] = {"cumsum": _scan("cumsum"), "cumprod": _scan("cumprod")}
