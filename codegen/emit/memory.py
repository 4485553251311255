"""Emitters of memory ops: allocation, loads and stores (also indexed), atomic additions, copies."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.dialect import NARROW
from tilewright.codegen.emit.emission import BufferRef, Emission, emitter
from tilewright.codegen.emit.fragments import declare_fragment
from tilewright.codegen.emit.vector_access import gather_chunks, load_chunks, native_pointer, store_chunks
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.nodes import Op
from tilewright.ir.types import itemsize

ASYNC_BYTES = (16, 8, 4)


@emitter("thread.alloc")
def _alloc(e: Emission, op: Op) -> None:
    t = op.result.tensor
    if op.result in e.buffers:
        return  # shared memory is declared at the top of the kernel
    if t.space == "frag":
        declare_fragment(e, op.result)
        return
    name = e.name(op.result.hint or "tile")
    # arrays of short elements are not aligned for the words that move several of them
    words = not e.dialect.native_vectors and itemsize(t.dtype) < 4 and t.rank > 0 and t.shape[-1] % 2 == 0
    align = f"__align__({VECTOR_BYTES}) " if words else ""
    e.line(f"{align}{e.dialect.mem_type(t.dtype)} {name}{array_extents(t.shape)};")
    e.buffers[op.result] = BufferRef(name, t, flat=False)


def array_extents(shape: Sequence[int]) -> str:
    """`[8][4]`; a rank-0 or empty buffer still has one element."""
    return "".join(f"[{max(1, d)}]" for d in shape) or "[1]"


@emitter("thread.load")
def _load(e: Emission, op: Op) -> None:
    b = e.buffer(op.operands[0])
    at = op.exprs("at")
    lanes = op.integer("lanes")
    condition = e.condition(op)
    dtype = b.type.dtype
    other = e.dialect.literal(op.number("other"), dtype)
    if condition == "0":
        e.bind_lanes(op.result, [other] * lanes, hint=b.name)
        return
    prefix = f"{condition} ? " if condition else ""
    if lanes == 1:
        element = e.element(b, at)
        text = f"{element} != 0" if dtype == "bool" else element
        e.bind(op.result, [f"{prefix}{text}" + (f" : {other}" if condition else "")], hint=f"{b.name}_v")
    elif e.dialect.native_vectors:
        kind = e.dialect.reg_type(dtype, lanes)
        text = f"*(const {native_pointer(e, b, lanes)})&{e.element(b, at)}"
        e.bind(
            op.result,
            [f"{prefix}{text}" + (f" : ({kind})({other})" if condition else "")],
            hint=f"{b.name}_v",
        )
    else:
        hint = op.result.hint or f"{b.name}_v"
        e.held[op.result] = load_chunks(e, b, at, lanes, hint, condition, other)


def guarded(e: Emission, op: Op) -> str | None:
    """Head of a block that runs where the op's mask holds; None where it never does, empty where always."""
    condition = e.condition(op)
    if condition == "0":
        return None
    return f"if ({condition})" if condition else ""


@emitter("thread.store", writes=(1,))
def _store(e: Emission, op: Op) -> None:
    head = guarded(e, op)
    if head is None:
        return
    if head:
        with e.braces(head):
            _write(e, op)
    else:
        _write(e, op)


def _write(e: Emission, op: Op) -> None:
    value, target = op.operands
    b, lanes = e.buffer(target), e.scalar_type(value).lanes
    at = op.exprs("at")
    if lanes == 1:
        e.line(f"{e.element(b, at)} = {e.value(value).parts[0]};")
    elif e.dialect.native_vectors:
        e.line(f"*({native_pointer(e, b, lanes)})&{e.element(b, at)} = {e.value(value).parts[0]};")
    else:
        store_chunks(e, b, at, e.value(value), e.lanes_of(value, lanes))


@emitter("thread.atomic_add", writes=(1,))
def _atomic_add(e: Emission, op: Op) -> None:
    head = guarded(e, op)
    if head is None:
        return
    value, target = op.operands
    b, lanes = e.buffer(target), e.scalar_type(value).lanes
    if b.type.dtype in NARROW or itemsize(b.type.dtype) < 4:
        raise UnsupportedError(
            f"thread.atomic_add: expected 32 or 64 bit elements, got {b.type}", where=op.loc
        )
    at = op.exprs("at")
    function = f"atomic_add_{b.type.dtype}"
    if e.dialect.native_vectors:
        function += f"_{'local' if b.type.space == 'shared' else 'global'}"
    if b.type.space == "reg":
        raise UnsupportedError(
            f"thread.atomic_add: expected global or shared memory, got {b.type}", where=op.loc
        )
    name = e.need(function, "")
    with e.braces(head):
        for lane, text in enumerate(e.lanes_of(value, lanes)):
            e.line(f"{name}(&{e.element(b, at, lane)}, {text});")


@emitter("thread.copy_async", writes=(1,))
def _copy_async(e: Emission, op: Op) -> None:
    source, target = (e.buffer(v) for v in op.operands)
    src = op.exprs("src")
    dst = op.exprs("dst")
    lanes, condition = op.integer("lanes"), e.condition(op)
    size = itemsize(source.type.dtype)
    if lanes * size not in ASYNC_BYTES:
        raise UnsupportedError(
            f"thread.copy_async: expected 4, 8 or 16 bytes, got {lanes} of {source.type.dtype}", where=op.loc
        )
    if e.dialect.native_vectors:
        _copy_now(e, source, target, src, dst, lanes, condition)
        return
    step = min(e.alignment(source, src, lanes), e.alignment(target, dst, lanes))
    if step * size not in ASYNC_BYTES:
        _copy_now(e, source, target, src, dst, lanes, condition)
        return
    function = e.need(f"copy_async_{step * size}", "")
    for start in range(0, lanes, step):
        places = f"&{e.element(target, dst, start)}, &{e.element(source, src, start)}"
        e.line(f"{function}({places}, {condition or 'true'});")


def _copy_now(
    e: Emission,
    source: BufferRef,
    target: BufferRef,
    src: Sequence[Expr],
    dst: Sequence[Expr],
    lanes: int,
    condition: str | None,
) -> None:
    """The same copy, finished at once: what the target or the alignment does not let run asynchronously."""
    zero = e.dialect.literal(0, source.type.dtype)
    for lane in range(lanes):
        text = e.element(source, src, lane)
        chosen = f"{condition} ? {text} : {zero}" if condition else text
        e.line(f"{e.element(target, dst, lane)} = {chosen};")


@emitter("thread.async_commit")
def _async_commit(e: Emission, op: Op) -> None:
    if not e.dialect.native_vectors:
        e.line(f"{e.need('async_commit', '')}();")


@emitter("thread.async_wait")
def _async_wait(e: Emission, op: Op) -> None:
    if not e.dialect.native_vectors:
        function = e.need("async_wait", "")
        e.line(f"{function}<{op.integer('pending')}>();")


@emitter("thread.gather")
def _gather(e: Emission, op: Op) -> None:
    b = e.buffer(op.operands[0])
    condition = e.condition(op)
    dtype, lanes = b.type.dtype, op.integer("lanes")
    other = e.dialect.literal(op.number("other"), dtype)
    if condition == "0":
        e.bind_lanes(op.result, [other] * lanes, hint=b.name)
        return
    offset = e.value(op.operands[1]).parts[0]
    element = f"{b.name}[{offset}]"
    if lanes == 1:
        text = f"{element} != 0" if dtype == "bool" else element
    elif e.dialect.native_vectors:
        text = f"*(const {native_pointer(e, b, lanes)})&{element}"
        other = f"({e.dialect.reg_type(dtype, lanes)})({other})"
    else:
        hint = op.result.hint or f"{b.name}_v"
        e.held[op.result] = gather_chunks(e, b, offset, lanes, hint, condition, other)
        return
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
