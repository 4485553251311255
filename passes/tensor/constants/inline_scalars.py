"""Pass inline-scalars: constants of one element become numbers in the bodies that read them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Func, Level, Module, Op, Value
from tilewright.ir.constants import Constants
from tilewright.ir.nodes import Attr
from tilewright.ir.tensor.ops import fills, reads
from tilewright.ir.types import FLOATS
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import is_copy
from tilewright.passes.rewriting.dead_ops import live_ops

#: ops whose operands may be any number of tensors; the lowerings of others count on theirs
_FREE = frozenset({"tensor.map", "tensor.reduce"})


@register_pass(Level.TENSOR)
def inline_scalars(module: Module, ctx: PassContext) -> Module:
    """Write floating constants of one element into the scalar bodies of the maps and reductions of @main.

    rewrite:  %c = tensor.constant(name = "half") : f32[]; tensor.map(%x, %c) {^(%a, %b) mul(%a, %b)}
        -->   tensor.map(%x) {^(%a) %b = scalar.const(value = 0.5); mul(%a, %b)}

    A kernel then needs no load of them. Constants whose data the module does not hold stay, as do those read
    by copies, which broadcast them, and where a read may miss the one element.
    """
    main = module.main
    if main.level is not Level.TENSOR:
        return module
    numbers = _numbers(main, module.constants)
    ops = tuple(_inlined(op, numbers) for op in main.body.ops)
    body = main.body.with_ops(ops)
    if body is main.body:
        return module
    new = main.with_body(body.with_ops(live_ops(body)))
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs))


def _numbers(main: Func, constants: Constants) -> dict[Value, float]:
    """The numbers of one element that constants of @main hold. A float holds those of 16 bits exactly."""
    return {
        op.result: float(constants[str(op["name"])].reshape(-1)[0])
        for op in main.body.ops
        if op.name == "tensor.constant"
        and op.result.tensor.size == 1
        and op.result.tensor.dtype in FLOATS
        and str(op["name"]) in constants
    }


def _inlined(op: Op, numbers: dict[Value, float]) -> Op:
    if op.name not in _FREE or op.body is None or is_copy(op):
        return op
    outside = fills(op)
    inside = {i for i, v in enumerate(op.operands) if v in numbers and outside[i] is None}
    if not inside:
        return op
    tensors = [i for i in range(len(op.operands)) if i not in inside]
    attrs: dict[str, Attr] = {"reads": tuple(reads(op)[i] for i in tensors)}
    if op.get("fill"):
        attrs["fill"] = tuple(outside[i] for i in tensors)
    params = op.body.params
    consts = tuple(_const(numbers[op.operands[i]], params[i], op.loc) for i in sorted(inside))
    left = tuple(p for i, p in enumerate(params) if i not in inside)
    body = replace(op.body, params=left, ops=(*consts, *op.body.ops))
    return replace(op.with_attrs(**attrs), operands=tuple(op.operands[i] for i in tensors), body=body)


def _const(number: float, value: Value, loc: str) -> Op:
    """The op that gives a body's parameter, from now on."""
    return Op("scalar.const", (), (("value", number), ("dtype", value.type.dtype)), (value,), None, loc)
