"""Weights of window ops in the order in which their values are read: channels innermost."""

from __future__ import annotations

from tilewright.ir import Builder, Func, Op, Sym, Value
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes.analysis.copies import copied
from tilewright.passes.tensor.layouts.axes import Order, reordered


def with_weights_innermost(func: Func) -> Func:
    """Let window ops read constants through copies that are contiguous along their innermost dimension.

    rewrite:  %y = tensor.window(%x, %w, par = (n, y, x, k), reads = [..., [k, 0, r, s]])
        -->   %v = tensor.map(%w, par = (i1, i2, i3, i0), ...);
              %y = tensor.window(%x, %v, par = (n, y, x, k), reads = [..., [0, r, s, k]])

    The copies are for `fold-constant-tensors`. (Contractions have `pack-weights`.)
    """
    constants = {r for op in func.body.ops if op.name == "tensor.constant" for r in op.results}
    b = Builder()
    for op in func.body.ops:
        if op.name == "tensor.window":
            for i, v in enumerate(op.operands):
                order = _order(op, i) if v in constants else None
                if order is not None:
                    with b.at(op.loc):
                        op = _reading(op, i, _copy(b, v, order), order)
        b.append(op)
    if len(b.ops) == len(func.body.ops):
        return func
    return func.with_body(func.body.with_ops(tuple(b.ops)))


def _order(op: Op, operand: int) -> Order | None:
    """The order of an operand that ends in the op's innermost dimension; None where it has it already."""
    inner = next((d for d, n in reversed(list(dims(op, "par").items())) if n > 1), "")
    at, shape = reads(op)[operand], op.operands[operand].tensor.shape
    if not inner or at.count(Sym(inner)) != 1:
        return None
    axis = at.index(Sym(inner))
    if all(n == 1 for n in shape[axis + 1 :]):
        return None
    return (*(k for k in range(len(shape)) if k != axis), axis)


def _copy(b: Builder, v: Value, order: Order) -> Value:
    shape = v.tensor.shape
    return copied(
        b, v, {f"i{axis}": shape[axis] for axis in order}, [Sym(f"i{k}") for k in range(len(shape))]
    )


def _reading(op: Op, operand: int, v: Value, order: Order) -> Op:
    places = list(reads(op))
    places[operand] = reordered(places[operand], order)
    operands = (*op.operands[:operand], v, *op.operands[operand + 1 :])
    return Op(op.name, operands, op.attrs, op.results, op.body, op.loc).with_attrs(reads=tuple(places))
