"""The problem of a contraction on tensor cores in the cost model's numbers, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Func, Op, Sym, Value, backward_slice, walk
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES
from tilewright.ir.simplify import coefficients, within
from tilewright.ir.tensor.ops import dims, ranges_of, reads
from tilewright.ir.thread.tensor_maps import UNIT_BYTES
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.constant_params import WEIGHTS
from tilewright.passes.analysis.shared_work import (
    FRAGMENT_COLUMNS,
    LANES,
    MOST_NEIGHBOURS,
    free_ops,
    lanes_of,
    shared_instructions,
    shared_work,
)
from tilewright.passes.kernels.kernel_problem import instructions, reached, stride_of, traffic
from tilewright.passes.kernels.matrix.boxes import comes_in_boxes
from tilewright.passes.kernels.matrix.parameters import ENGINE, ONLY_SUMS, MatrixParameters
from tilewright.passes.kernels.matrix.space import (
    LaidResults,
    MatrixProblem,
    SummedColumns,
    laid_stages,
    matrix_space_of,
    raster_of,
)
from tilewright.passes.kernels.matrix.view import MatrixView, may_split, plain
from tilewright.passes.kernels.writing.column_sums import ColumnSums, column_sums, point_ops
from tilewright.passes.kernels.writing.engine_results import ROW_BYTES, Tiling, result_maps

#: bytes of results that the copy engine writes
RESULT_BYTES = 2
#: instructions per vector of LANES results that pairs may repeat of what neighbours share: sums in rows take
#: some eight issue slots more a vector than pieces of fragments, and such an instruction not quite one
MOST_REPEATED = 10
#: biases and the like: they stay in the caches
MOST_SMALL_BYTES = 100_000


def matrix_problem(kernel: Func, view: MatrixView) -> MatrixProblem:
    """The product of a kernel; constant second factors count as packed, the channel innermost."""
    moved = traffic(kernel)
    first, second = (source.value for source in view.sources)
    first_bytes, second_bytes = (
        sum(
            reached(kernel, v)
            for v in dict.fromkeys(piece.sources[i].value for piece in view.pieces())
            if v in kernel.params
        )
        for i in (0, 1)
    )
    if first is second:
        second_bytes = 0  # two parts of one array, which the traffic counts once
    size = itemsize(view.dtype)
    at = kernel.body.ops.index(view.op)
    before, after = kernel.body.ops[:at], point_ops(kernel, view.op)
    sums, members = column_sums(kernel, view), view.sums_of_result
    tail_work, tail_shared, tail_paired = (work / members for work in result_work(after))
    return MatrixProblem(
        batch=view.size(view.batch),
        m=view.size(view.rows),
        n=view.size(view.columns),
        channel=view.sizes[view.channel],
        taps=view.size(view.taps),
        element_bytes=size * len(list(view.pieces())),
        first_bytes=first_bytes,
        second_bytes=second_bytes,
        result_bytes=moved - first_bytes - second_bytes,
        fetched=_fetched(view),
        first_copy=view.copy_elements(0),
        second_copy=_second_copy(kernel, view, size),
        first_lanes=_lanes(view, 0, size),
        second_lanes=_lanes(view, 1, size),
        first_stride=_stride(kernel, view, 0),
        second_stride=0 if _may_be_packed(kernel, view) else _stride(kernel, view, 1),
        first_rows=view.along(0) in ("", view.channel),
        second_rows=view.along(1) in ("", view.channel) or packs_rows(kernel, view),
        head_work=0.0 if view.stored else _work(before),
        tail_work=tail_work,
        tail_shared=tail_shared,
        tail_paired=tail_paired,
        tail_bytes=large_bytes(kernel, after),
        split=may_split(view.op),
        promotes=view.promotes,
        summed=None if sums is None else _summed(kernel, sums, after),
        members=members,
        laid=None if tail_paired - tail_shared > MOST_REPEATED else laid_results(kernel, view, sums),
        boxes=comes_in_boxes(view, 0) and (packs_boxes(kernel, view, size) or comes_in_boxes(view, 1)),
    )


def _summed(kernel: Func, sums: ColumnSums, after: Sequence[Op]) -> SummedColumns:
    """The sums of columns of a kernel in numbers; after: the maps at its own points."""
    kept = _kept(sums)
    written = backward_slice(after, sums.written)
    known = {v for op in written for v in op.operands}
    beside = [op for op in after if op not in written] if sums.written else []
    further = {v for op in beside for v in op.operands if v in kernel.params and v not in known}
    return SummedColumns(
        part_rows=sums.length,
        value_bytes=sum(itemsize(v.tensor.dtype) for v in sums.points),
        group_bytes=_group_bytes(sums),
        values=len(sums.points),
        further=sum(reached(kernel, v) > MOST_SMALL_BYTES for v in further),
        fold_work=_fold_work(sums.folds),
        group_work=len(kept) + _work([op for op in sums.ends if op.name == "tensor.reduce"]),
    )


def _kept(sums: ColumnSums) -> list[Value]:
    """Return the values that a column keeps of every 16 rows until the end of a tile."""
    return [*(op.result for op in sums.folds), *sums.firsts]


def _group_bytes(sums: ColumnSums) -> int:
    return sum(itemsize(v.tensor.dtype) for v in _kept(sums))


def packs_boxes(kernel: Func, view: MatrixView, size: int) -> bool:
    """Return whether the second factor is packed to rows that the copy engine takes."""
    return packs_rows(kernel, view) and view.sizes[view.channel] * size % UNIT_BYTES == 0


def _fold_work(folds: Sequence[Op]) -> float:
    """Instructions per summed result: what several sums compute alike counts once.

    What is computed of the first row of a group alone is left out: it is there before the others.
    """
    known: dict[tuple[object, ...], float] = {}
    for fold in folds:
        assert fold.body is not None
        (name,) = dims(fold, "red")
        params, acc = fold.body.params[:-1], fold.body.params[-1]
        keys: dict[Value, object] = {acc: fold.results[0]}
        varies = {acc}
        for p, v, at in zip(params, fold.operands, reads(fold), strict=True):
            keys[p] = (v, any(name in symbols(e) for e in at))
            varies |= {p} if keys[p] == (v, True) else set()
        for op in fold.body.ops:
            given = (op.name, op.attrs, *(keys[v] for v in op.operands))
            changes = any(v in varies for v in op.operands)
            known[given] = instructions([op.name]) if changes else 0.0
            keys |= dict.fromkeys(op.results, given)
            varies |= set(op.results) if changes else set()
    return sum(known.values())


def _work(ops: Sequence[Op]) -> float:
    return instructions(inner.name for op in ops if op.body is not None for inner in walk(op.body))


def result_work(ops: Sequence[Op]) -> tuple[float, float, float]:
    """Instructions per result, and those per vector of LANES results that these share: in threads that have
    whole vectors of neighbours, and in those that have the pairs of a fragment.

    Ops that several neighbours share count once for them, and what renames registers not at all, where there
    is a call of several results; others count for each result, as they did in what the model was fitted to.
    """
    each = shared = paired = 0.0
    for op in ops:
        if op.body is None:
            continue
        if not any(n < MOST_NEIGHBOURS for n in shared_work(op)):
            each += instructions(inner.name for inner in walk(op.body))
            continue
        free = free_ops(op)
        each += instructions(inner.name for inner in op.body.ops if inner not in free)
        each -= sum(shared_work(op).values())
        shared += LANES * shared_instructions([op], lanes_of(ops))
        paired += LANES * shared_instructions([op], FRAGMENT_COLUMNS)
    return max(0.0, each), shared, paired


def large_bytes(kernel: Func, ops: Sequence[Op]) -> int:
    """Bytes of the parameters that these ops read, without biases and the like."""
    read = dict.fromkeys(v for op in ops for v in op.operands if v in kernel.params)
    return sum(n for p in read if (n := reached(kernel, p)) > MOST_SMALL_BYTES)


def _lanes(view: MatrixView, operand: int, size: int) -> int:
    """Elements that a thread takes together where it computes a factor; one by one where it only gathers."""
    return 1 if view.sources[operand].given else view.lanes(operand, ASYNC_COPY_BYTES[0] // size)


def _second_copy(kernel: Func, view: MatrixView, size: int) -> int:
    """Elements that one copy of the second factor moves, as it lies or as constants are packed."""
    if view.sources[1].value not in kernel.params:
        return 0
    copy = view.copy_elements(1)
    if not _may_be_packed(kernel, view):
        return copy
    packed = gcd(view.sizes[view.channel], ASYNC_COPY_BYTES[0] // size)
    return max(copy, packed if packed * size in ASYNC_COPY_BYTES else 0)


def _may_be_packed(kernel: Func, view: MatrixView) -> bool:
    """Return whether the second factor may be a constant that is read as it can be packed."""
    if view.exchanged:
        return False
    second, at = view.op.operands[1], reads(view.op)[1]
    marked: tuple[int, ...] | None = kernel.get(WEIGHTS)  # type: ignore[assignment]
    constant = marked is None or any(kernel.params[i] is second for i in marked)
    return constant and second in kernel.params and plain(at) and Sym(view.channel) in at


def _stride(kernel: Func, view: MatrixView, operand: int) -> int:
    """Bytes between what neighbouring threads read to fill a tile; 0 where that lies side by side."""
    source = view.sources[operand]
    return stride_of(kernel, view.op, source.value, source.at, view.along(operand) or view.channel)


def packs_rows(kernel: Func, view: MatrixView) -> bool:
    """Return whether the second factor is a constant that `pack-weights` stores in rows of the channel."""
    if view.exchanged:
        return False
    weights, at = view.op.operands[1], reads(view.op)[1]
    marked: tuple[int, ...] = kernel.get(WEIGHTS, ())  # type: ignore[assignment]
    once = sum(list(op.operands).count(weights) for op in kernel.body.ops) == 1
    constant = any(kernel.params[i] is weights for i in marked)
    return constant and once and plain(at) and Sym(view.channel) in at


def _fetched(view: MatrixView) -> float:
    """The share of the first factor's elements, over all rows and taps, that lie inside of it; at least."""
    ranges = {d: r for d, r in ranges_of(view.op).items() if r[1] > 0}
    share = 1.0
    seen: set[str] = set()
    for e, extent in zip(view.sources[0].at, view.sources[0].value.tensor.shape, strict=True):
        if within(e, extent, ranges_of(view.op)):
            continue
        form = coefficients(e, list(ranges), ranges)
        if form is None or not isinstance(form[1], int) or seen & set(symbols(e)):
            return 0.0
        seen |= set(symbols(e))
        values = np.array([form[1]], dtype=np.int64)
        for d, c in form[0].items():
            values = (values[:, None] + c * np.arange(ranges[d][1] + 1)).reshape(-1)
        share *= float(((values >= 0) & (values < extent)).mean())
    return share


def parameters_for(
    kernel: Func, view: MatrixView, p: MatrixParameters, hardware: GpuHardware
) -> MatrixParameters:
    """A point of the model's space as the parameters of a kernel.

    By roles warps lay results down out of their fragments where they can, and the copy engine writes them:
    less passes the port of shared memory than by sums in float32, and warps go on while results are written.
    Where nothing but sums of columns is stored, warps lay down what is summed in the same pieces.
    """
    raster = raster_of(-(-view.size(view.rows) // p.block.m))
    p = replace(p, channel=view.channel, raster=raster, exchanged=view.exchanged)
    problem = matrix_problem(kernel, view)
    (stages,) = laid_stages(problem, matrix_space_of(p), hardware)
    if not stages:
        return p
    assert problem.laid is not None
    return replace(p, stores=ENGINE if problem.laid.written else ONLY_SUMS, stages=int(stages))


def laid_results(kernel: Func, view: MatrixView, sums: ColumnSums | None) -> LaidResults | None:
    """What warps by roles can lay down; None where threads write results out of sums in rows.

    The copy engine writes results of 16 bits that lie in rows. Where nothing but sums of columns is stored,
    what is summed is laid down as these would be. sums: those of the kernel.
    """
    if view.stored or view.splits:
        return None
    if sums is not None and not sums.written:
        return _alike(sums.points, written=False)
    numbered = enumerate(kernel.body.ops[-1].operands)
    results = {i: v for i, v in numbered if sums is None or v in sums.written}
    if sums is not None and not sums.stored:
        return None
    found = _alike(list(results.values()), written=True)
    if found is None or found.value_bytes != RESULT_BYTES:
        return None
    # Whether a tensor map describes them depends on no tile: the widest pieces stand for all.
    tiling = _tiling(view, 1, ROW_BYTES // RESULT_BYTES)
    return found if result_maps({i: v.tensor for i, v in results.items()}, tiling) is not None else None


def _alike(values: Sequence[Value], *, written: bool) -> LaidResults | None:
    """Values of one size, which take the same pieces; None where sizes differ."""
    sizes = {itemsize(v.tensor.dtype) for v in values}
    return LaidResults(len(values), sizes.pop(), written) if len(sizes) == 1 else None


def tiling_of(view: MatrixView, p: MatrixParameters) -> Tiling:
    """The tile of results of a team."""
    return _tiling(view, p.team_warps, p.warp_n // view.sums_of_result)


def _tiling(view: MatrixView, warps: int, columns: int) -> Tiling:
    return Tiling(view.results, view.batch, view.rows, view.columns, warps, columns)
