"""Pass store-narrow: what kernels hand on in float32 to make 16-bit numbers of is stored in 16 bits."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Literal

from tilewright.ir import Block, Builder, Func, Level, Module, Op, Sym, TensorType, Value
from tilewright.ir.tensor.ops import callee_of, dims
from tilewright.ir.tensor.value_ranges import range_of_type, ranges_in
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.copies import copied
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.inlined import with_bodies
from tilewright.passes.rewriting.values import with_values

#: bytes of a value up to which its traffic is no concern
SMALL_BYTES = 1 << 16


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def store_narrow(module: Module, ctx: PassContext, *, dtype: Literal["f16", "bf16"] = "f16") -> Module:
    """Store float32 results of kernels in 16 bits where all that read them make 16-bit numbers of them.

    rewrite:  %g = tensor.call(%x, callee = @matmul_gelu) : f32[m, n];
              %y = tensor.call(%x, %g, callee = @matmul_multiply) : f16[m, n]
        -->   the same with %g : f16[m, n], which @matmul_gelu rounds and @matmul_multiply widens

    A precision of 16 bits decides on the graph what is stored narrow, before it is known what shares a
    kernel: what an activation gives in float32 stays in registers where its reader is in the same kernel, and
    otherwise would take twice the traffic. The number is rounded once more, as every value is that a
    network keeps in 16 bits. It must be sure not to overflow: by intervals, a gate between 0 and 1 times a
    16-bit number is, a sum of two of them is not. Values of reductions, of few elements, and of functions
    with state stay as they are, as do those that some reader keeps in float32.
    """
    main = module.main
    if main.level is not Level.TENSOR or main.updates:
        return module
    kernels = {f.name: f for f in module.funcs if f is not main}
    calls = Counter(op["callee"] for op in main.body.ops if op.name == "tensor.call")
    uses: dict[Value, list[tuple[Op, int]]] = defaultdict(list)
    for op in main.body.ops:
        for i, v in enumerate(op.operands):
            uses[v].append((op, i))
    narrow: dict[Value, Value] = {}
    results: dict[str, set[int]] = defaultdict(set)
    params: dict[str, set[int]] = defaultdict(set)
    for op in main.body.ops:
        if op.name != "tensor.call" or calls[op["callee"]] != 1:
            continue
        kernel = kernels[callee_of(op)]
        for i, v in enumerate(op.results):
            if v.tensor.dtype != "f32" or v.tensor.nbytes <= SMALL_BYTES or not v.tensor.dense:
                continue
            if not _is_storable(kernel, i, dtype):
                continue
            readers = uses[v]
            if not readers or not all(
                x.name == "tensor.call" and calls[x["callee"]] == 1 and _narrows(kernels[callee_of(x)], k)
                for x, k in readers
            ):
                continue
            narrow[v] = Value(TensorType(dtype, v.tensor.shape), v.hint)
            results[kernel.name].add(i)
            for x, k in readers:
                params[callee_of(x)].add(k)
    if not narrow:
        return module
    ops = tuple(with_values(op, narrow) for op in main.body.ops)
    return module.with_funcs(
        tuple(
            main.with_body(main.body.with_ops(ops))
            if f is main
            else _rounding(_widening(f, params[f.name], dtype), results[f.name], dtype)
            for f in module.funcs
        )
    )


def _is_storable(kernel: Func, result: int, dtype: str) -> bool:
    """Whether a result is a map whose numbers all lie in the range of a 16-bit type."""
    v = kernel.body.ops[-1].operands[result]
    made = next((op for op in kernel.body.ops if v in op.results), None)
    if made is None or made.name != "tensor.map" or kernel.body.ops[-1].operands.count(v) > 1:
        return False
    if dtype == "bf16":  # which has the range of float32
        return True
    (low, high), (least, most) = ranges_in(kernel)(v), range_of_type(dtype)
    return least <= low and high <= most


def _narrows(kernel: Func, param: int) -> bool:
    """Whether all that a kernel makes of a parameter is maps that end in numbers of at most 16 bits."""
    wide = {kernel.params[param]}
    for op in kernel.body.ops:
        if not any(v in wide for v in op.operands):
            continue
        if op.name != "tensor.map":
            return False
        wide.update(r for r in op.results if itemsize(r.tensor.dtype) > 2)
    return True


def _widening(kernel: Func, positions: set[int], dtype: str) -> Func:
    """The kernel with some parameters in 16 bits, which its maps widen where they read them."""
    if not positions:
        return kernel
    b = Builder()
    params = list(kernel.params)
    wider: dict[Value, Op] = {}
    for i in positions:
        old = kernel.params[i]
        params[i] = Value(TensorType(dtype, old.tensor.shape), old.hint)
        par = {f"i{k}": n for k, n in enumerate(old.tensor.shape)}
        copied(b, params[i], par, [Sym(d) for d in par], dtype="f32")
        wider[old] = b.ops[-1]
    ops = tuple(with_bodies(op, wider) for op in kernel.body.ops)
    renamed = {old: op.result for old, op in wider.items()}
    return _kernel(kernel, tuple(params), (*b.ops, *(with_values(op, renamed) for op in ops)))


def _rounding(kernel: Func, positions: set[int], dtype: str) -> Func:
    """The kernel with some results in 16 bits, which it rounds last."""
    if not positions:
        return kernel
    *ops, last = kernel.body.ops
    b = Builder()
    outputs = list(last.operands)
    for i in positions:
        made = next(op for op in ops if outputs[i] in op.results)
        with b.at(made.loc):
            par = dims(made, "par")
            outputs[i] = copied(b, outputs[i], par, [Sym(d) for d in par], dtype=dtype)
    return _kernel(kernel, kernel.params, (*ops, *b.ops, last.with_operands(tuple(outputs))))


def _kernel(kernel: Func, params: tuple[Value, ...], ops: tuple[Op, ...]) -> Func:
    block = Block(params, ops)
    block = block.with_ops(live_ops(block))
    return replace(kernel, body=block, result_types=tuple(v.type for v in block.ops[-1].operands))
