"""Estimates of a product in parts by the tensor cores' model alone: a first look that runs no passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from tilewright.costmodel import Hardware, choose_map
from tilewright.ir import Block, Builder, Func, Level, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes.analysis.index_sets import sums_samples
from tilewright.passes.kernels.kernel_problem import stream_problem
from tilewright.passes.kernels.matrix.choice import choose_matrix, has_tensor_cores
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.reduction_parts import added, channel_of
from tilewright.passes.kernels.matrix.space import MatrixProblem
from tilewright.passes.kernels.matrix.view import NARROW, matrix_view


def innermost_channels(op: Op) -> Op:
    """A product that tensor cores may compute with channels innermost, any other as it is.

    Layouts are chosen later, and tensor cores then get images with channels innermost: in any other order
    their copies are no asynchronous ones, and a product seems slower and worth splitting.
    """
    x, y = op.operands[0].tensor, op.result.tensor
    if x.dtype not in NARROW and op["factors"] != "tf32":
        return op
    if sums_samples(op):
        return _innermost_rows(op)
    first, second = reads(op)[:2]
    channel = Sym(channel_of(op))
    axes = sorted(range(x.rank), key=lambda axis: first[axis] == channel)
    if axes == sorted(axes):
        return op
    par, columns = tuple(dims(op, "par").items()), {d for e in second for d in symbols(e)}
    order = sorted(range(len(par)), key=lambda axis: par[axis][0] in columns)
    turned = op.with_attrs(
        par=Pairs(tuple(par[axis] for axis in order)),
        reads=(tuple(first[axis] for axis in axes), second),
    )
    image = Value(replace(x, shape=tuple(x.shape[axis] for axis in axes)), "x")
    result = Value(replace(y, shape=tuple(y.shape[axis] for axis in order)))
    return replace(turned, operands=(image, *op.operands[1:]), results=(result,))


def _innermost_rows(op: Op) -> Op:
    """A gradient by weights whose factors have the channels innermost that are its rows and its columns."""
    par = dims(op, "par")
    operands, places = [], []
    for v, at in zip(op.operands, reads(op), strict=True):
        axes = sorted(
            range(v.tensor.rank), key=lambda axis: isinstance(at[axis], Sym) and str(at[axis]) in par
        )
        operands.append(Value(replace(v.tensor, shape=tuple(v.tensor.shape[axis] for axis in axes)), "x"))
        places.append(tuple(at[axis] for axis in axes))
    return replace(op.with_attrs(reads=tuple(places)), operands=tuple(operands))


def matrix_estimates(op: Op, options: Sequence[int], hardware: Hardware) -> dict[int, float]:
    """Seconds of a product in so many parts, and of adding them, if tensor cores compute it; {} if not."""
    kernel = _kernel(list(op.operands), [op], op.result)
    view = matrix_view(kernel, op)
    if view is None or view.channel != channel_of(op):
        return {}
    problem = matrix_problem(kernel, view)
    if not has_tensor_cores(hardware, problem):
        return {}
    found = {}
    for parts in options:
        found[parts] = choose_matrix(_part(problem, parts), hardware).estimate_s
        if parts > 1:
            found[parts] += _adding_s(op, parts, hardware)
    return found


def _part(problem: MatrixProblem, parts: int) -> MatrixProblem:
    """The product whose batch is the parts of another one's sum."""
    length = problem.channel // parts
    copies = []
    for copy in (problem.first_copy, problem.second_copy):
        shorter = gcd(copy, length)
        copies.append(shorter if shorter * problem.element_bytes in ASYNC_COPY_BYTES else 0)
    return replace(
        problem,
        batch=problem.batch * parts,
        channel=length,
        result_bytes=problem.result_bytes * parts,
        first_copy=copies[0],
        second_copy=copies[1],
    )


def _adding_s(op: Op, parts: int, hardware: Hardware) -> float:
    t = op.result.tensor
    sums = Value(TensorType(t.dtype, (parts, *t.shape)), "sums")
    b = Builder()
    total = added(b, sums, dims(op, "par"))
    return choose_map(stream_problem(_kernel([sums], b.ops, total)), hardware).estimate_s


def _kernel(params: Sequence[Value], ops: Sequence[Op], result: Value) -> Func:
    b = Builder()
    b.do("tensor.return", result)
    return Func(Level.TENSOR, "part", Block(tuple(params), (*ops, *b.ops)), (result.type,))
