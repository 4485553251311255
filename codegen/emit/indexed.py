"""Emitters of accesses at offsets that are values."""

from __future__ import annotations

from tilewright.codegen.emit.emission import Emission, emitter
from tilewright.codegen.emit.memory import guarded
from tilewright.ir.nodes import Op


@emitter("thread.gather")
def _gather(e: Emission, op: Op) -> None:
    b = e.buffer(op.operands[0])
    condition = e.condition(op)
    dtype = b.type.dtype
    other = e.dialect.literal(op["other"], dtype)  # type: ignore[arg-type]
    if condition == "0":
        e.bind(op.result, [other], hint=b.name)
        return
    element = f"{b.name}[{e.value(op.operands[1]).parts[0]}]"
    text = f"{element} != 0" if dtype == "bool" else element
    e.bind(op.result, [f"{condition} ? {text} : {other}" if condition else text], hint=f"{b.name}_v")


@emitter("thread.scatter", writes=(1,))
def _scatter(e: Emission, op: Op) -> None:
    head = guarded(e, op)
    if head is None:
        return
    value, target, offset, *flag = op.operands
    store = f"{e.buffer(target).name}[{e.value(offset).parts[0]}] = {e.value(value).parts[0]};"
    if flag:
        store = f"if ({e.value(flag[0]).parts[0]}) {store}"
    if head:
        with e.braces(head):
            e.line(store)
    else:
        e.line(store)
