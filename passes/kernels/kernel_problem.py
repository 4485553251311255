"""The problem of a tensor-level kernel in the cost model's numbers, from domains and reads alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from tilewright.costmodel import ContractProblem, LineProblem, RowReduceProblem, StreamProblem, WindowProblem
from tilewright.ir import Block, Func, Op, Sym, TensorType, Value, backward_slice, walk
from tilewright.ir.expr import BinOp, Expr, substitute, symbols
from tilewright.ir.hardware_facts import SECTOR_BYTES
from tilewright.ir.simplify import coefficients, interval, simplify
from tilewright.ir.tensor.ops import REDUCING, dims, domain, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.index_sets import (
    POINTWISE,
    index_step,
    placed_reads,
    recompute_cost,
    slices_of,
)
from tilewright.passes.analysis.shared_work import free_ops, shared_work

#: a column dimension of fewer indices is not worth tiles and vectors where there is a wider one
NARROW_COLUMNS = 8
#: per op, where it is not one; those of the math library as NVRTC compiles them for sm_90
INSTRUCTIONS = {
    "cast": 0.5, "const": 0.0, "yield": 0.0, "sigmoid": 8.0, "exp": 6.0, "exp2": 4.0, "div": 8.0,
    "rsqrt": 4.0, "sqrt": 6.0, "log": 8.0, "log2": 8.0, "log10": 8.0, "tanh": 20.0, "erf": 20.0, "pow": 30.0,
    "sin": 20.0, "cos": 20.0, "tan": 30.0, "mod": 20.0, "truncmod": 20.0, "truncdiv": 10.0,
}  # fmt: skip
#: points of a usual vector: all read one element where its index is a quotient by a multiple of this
SHARED_VECTOR = 4


def instructions(ops: Iterable[str]) -> float:
    """Instructions of ops by name (`scalar.add`), once each."""
    return sum(INSTRUCTIONS.get(name.removeprefix("scalar."), 1.0) for name in ops)


@dataclass(frozen=True)
class ContractRoles:
    """Dimensions of a contraction by role.

    `rows` vary with the first operand only, `columns` with the second only, `batch` with both; `channels` are
    reduced plainly, `windows` pairs one of the last two row dimensions with the reduced one beside it (taps
    along a third one count as channels). The last of `columns` is the one to cut into tiles. `spatial` are
    the row dimensions that play n, h and w ('' where there is none).
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batch: tuple[str, ...]
    channels: tuple[str, ...]
    windows: tuple[tuple[str, str], ...]
    spatial: tuple[str, str, str]


def contract_roles(op: Op) -> ContractRoles:
    """Roles of every dimension of a tensor.contract."""
    par, red = dims(op, "par"), dims(op, "red")
    a, b = (_mentioned(at) for at in reads(op)[:2])
    rows = tuple(d for d in par if d in a and d not in b)
    windows = tuple((outer, inner) for outer, inner in windows_of(op) if outer in rows[-2:])
    windowed = {r for _, r in windows}
    return ContractRoles(
        rows=rows,
        columns=_narrow_first(tuple(d for d in par if d in b and d not in a), par),
        batch=tuple(d for d in par if (d in a) == (d in b)),
        channels=tuple(d for d in red if d not in windowed),
        windows=windows,
        spatial=_spatial(op, rows, windows),
    )


def _spatial(op: Op, rows: Sequence[str], windows: Sequence[tuple[str, str]]) -> tuple[str, str, str]:
    """The last row dimension is w. The one before it is h if a window moves along it or the first operand has
    it right before w, as images do; rows of the same picture in each sample of a batch are n."""
    n, h, w = ("", "", "", *rows)[-3:]
    if not h or h in dict(windows) or _side_by_side(op, h, w):
        return n, h, w
    return h, "", w


def _side_by_side(op: Op, outer: str, inner: str) -> bool:
    """Return whether two dimensions walk over neighbouring axes of the first operand, or the same one."""
    axes = [set(symbols(e)) for e in reads(op)[0]]
    return any(outer in a and inner in a | b for a, b in zip(axes, (*axes[1:], set()), strict=True))


def _narrow_first(columns: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The dimensions in their order, narrow ones before all others: the last one is cut into tiles."""
    return tuple(sorted(columns, key=lambda d: sizes[d] >= NARROW_COLUMNS))


def windows_of(op: Op) -> tuple[tuple[str, str], ...]:
    """Pairs of a parallel and a reduced dimension that the first operand reads in one index."""
    par, red = dims(op, "par"), dims(op, "red")
    pairs = []
    for e in reads(op)[0]:
        inside = list(dict.fromkeys(symbols(e)))
        outer, inner = [d for d in inside if d in par], [d for d in inside if d in red]
        if len(outer) == 1 and len(inner) == 1:
            pairs.append((outer[0], inner[0]))
    return tuple(pairs)


def ops_named(kernel: Func, *names: str) -> list[Op]:
    """The ops of a kernel with one of these names, in order."""
    return [op for op in kernel.body.ops if op.name in names]


def only_op(kernel: Func, *names: str) -> Op | None:
    """The op of a kernel that does nothing else, where it has one of these names; None for other kernels."""
    ops = kernel.body.ops
    return ops[0] if len(ops) == 2 and ops[0].name in names else None


def contract_problem(kernel: Func, op: Op) -> ContractProblem:
    """The contraction of a kernel; further operands and results count as extra traffic."""
    roles, sizes = contract_roles(op), domain(op)
    n, h, w = roles.spatial
    extra = [d for d in roles.rows if d not in (n, h, w)]
    vertical, horizontal = _axis(op, h, roles.windows), _axis(op, w, roles.windows)
    main = sum(v.tensor.nbytes for v in (*op.operands[:2], op.result))
    return ContractProblem(
        groups=_size(roles.batch, sizes) * _size(extra, sizes),
        n=sizes.get(n, 1),
        k=_size(roles.columns, sizes),
        c=_size(roles.channels, sizes),
        **_geometry(vertical, horizontal),
        element_bytes=itemsize(op.operands[0].tensor.dtype),
        extra_bytes=max(0, traffic(kernel) - main),
        rows_inner=_rows_inner(op, roles),
    )


def _rows_inner(op: Op, roles: ContractRoles) -> bool:
    """Return whether neighbouring elements of the first operand are rows or taps, not reduced channels."""
    at = reads(op)[0]
    inside = set(symbols(at[-1])) - set(roles.batch) if at else set()
    return not inside or not inside <= set(roles.channels)


def window_problem(kernel: Func, op: Op, plane: tuple[str, str] | None = None) -> WindowProblem:
    """A window kernel seen as independent planes: of its last two parallel dimensions, or the given ones."""
    par = dims(op, "par")
    names = plane or ("", "", *par)[-2:]
    vertical, horizontal = (_axis(op, d, windows_of(op)) for d in names)
    planes = max(1, prod(par.values()) // (vertical.extent * horizontal.extent))
    weights = sum(v.tensor.nbytes for v in op.operands[1:])
    main = op.operands[0].tensor.nbytes + op.result.tensor.nbytes + weights
    behind = kernel.body.ops[kernel.body.ops.index(op) + 1 :]
    assert op.body is not None
    return WindowProblem(
        planes=planes,
        **_geometry(vertical, horizontal),
        weight_bytes=weights,
        element_bytes=itemsize(op.operands[0].tensor.dtype),
        extra_bytes=max(0, traffic(kernel) - main),
        image_bytes=op.operands[0].tensor.nbytes,
        weight_stride=_weight_stride(kernel, op),
        tap_work=instructions(o.name for o in op.body.ops if o.name != "scalar.cast"),
        tail_work=instructions(inner.name for o in behind if o.body is not None for inner in walk(o.body)),
    )


def _weight_stride(kernel: Func, op: Op) -> int:
    """Bytes from the weights of one of the innermost outputs to those of the next; 0 where side by side."""
    par = dims(op, "par")
    inner = next((d for d in reversed(par) if par[d] > 1), "")
    if len(op.operands) < 2 or not inner:
        return 0
    return stride_of(kernel, op, op.operands[1], reads(op)[1], inner)


def stride_of(kernel: Func, op: Op, value: Value, at: Sequence[Expr], d: str) -> int:
    """Bytes in memory from one index along a dimension of an op to the next, of what it reads of a value.

    0 where they lie side by side. What a map of the kernel makes is read where the map reads its parameters.
    """
    producer = next((o for o in kernel.body.ops if value in o.results), None)
    if producer is None:
        read = [(value, tuple(at))]
    elif producer.name == "tensor.map":
        env = dict(zip(dims(producer, "par"), at, strict=True))
        places = (tuple(substitute(e, env) for e in place) for place in reads(producer))
        read = [(v, place) for v, place in zip(producer.operands, places, strict=True) if v in kernel.params]
    else:
        return 0
    widest = 0
    for v, place in read:
        offset: Expr = 0
        for e, stride in zip(place, v.tensor.strides, strict=True):
            offset += e * stride
        form = coefficients(simplify(offset, ranges_of(op)), [d], ranges_of(op))
        step = abs(form[0].get(d, 0)) if form is not None else 0
        widest = max(widest, step * itemsize(v.tensor.dtype) if step > 1 else 0)
    return widest


def map_parts(kernel: Func) -> tuple[Func, ...]:
    """A kernel of maps as one kernel per shape of its results, in order; itself where all have one shape.

    Parts share parameters and what both compute; blocks of one launch compute one part each.
    """
    by_shape: dict[tuple[int, ...], list[Value]] = {}
    for v in _outputs(kernel):
        by_shape.setdefault(v.tensor.shape, []).append(v)
    if len(by_shape) < 2:
        return (kernel,)
    return tuple(_giving(kernel, tuple(results)) for results in by_shape.values())


def _giving(kernel: Func, results: tuple[Value, ...]) -> Func:
    """The kernel of these results alone, with the ops and parameters that they need."""
    ops = backward_slice(kernel.body.ops[:-1], results)
    read = {*results, *(v for op in ops for v in op.operands)}
    end = kernel.body.ops[-1].with_operands(results)
    body = Block(tuple(p for p in kernel.params if p in read), (*ops, end))
    return replace(kernel, body=body, result_types=tuple(v.type for v in results))


def stream_problem(kernel: Func) -> StreamProblem:
    """A kernel of maps: all bytes in and out, and the scalar work; of parts, their sum."""
    parts = [_part_problem(part) for part in map_parts(kernel)]
    if len(parts) == 1:
        return parts[0]
    written = sum(part.bytes_written for part in parts)
    shared: Counter[int] = Counter()
    for part in parts:
        shared.update(dict(part.shared))
    return StreamProblem(
        traffic(kernel) - written,
        written,
        sum(part.elements for part in parts),
        sum(part.flops for part in parts),
        max(part.reads for part in parts),
        max(part.gathers for part in parts),
        tuple(sorted(shared.items())),
        max(part.results for part in parts),
    )


def _part_problem(kernel: Func) -> StreamProblem:
    ops = [op for op in kernel.body.ops if op.name in POINTWISE]
    points = max(1, prod(dims(ops[-1], "par").values()))
    work = sum(_work(op) for op in ops)
    written = sum(v.tensor.nbytes for v in _outputs(kernel))
    count = sum(v in kernel.params for op in ops for v in op.operands)
    gathers = sum(map(_gathers, ops))
    shared: Counter[int] = Counter()
    for op in ops:
        shared.update(shared_work(op))
    once = sum(n - n / neighbours for neighbours, n in shared.items())
    once += sum(o.name != "scalar.yield" for op in ops for o in free_ops(op))
    return StreamProblem(
        traffic(kernel) - written,
        written,
        points,
        int(max(1, work - once) * points),
        max(1, count),
        gathers,
        tuple(sorted((neighbours, n * points) for neighbours, n in shared.items())),
        _reading_results(kernel),
    )


def _reading_results(kernel: Func) -> int:
    """Return how many results read a parameter that none before them reads; the first one counts always."""
    maker = {r: op for op in kernel.body.ops for r in op.results}
    seen: set[Value] = set()
    found = 0
    for result in dict.fromkeys(_outputs(kernel)):
        pending, reads_more = [result], False
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in maker:
                pending += maker[value].operands
            else:
                reads_more = True
        found += reads_more
    return max(1, found)


def _gathers(op: Op) -> int:
    """Reads of an op elsewhere than where its point is, or that may lie outside their operand.

    What all points read at one place, such as the words of a seed, a thread has once: it is no gather.
    """
    placed = placed_reads(op)
    filled = fills(op) if op.name == "tensor.map" else ()
    moved = [any(not _beside(e) and n > 1 for e, n in zip(at, v.tensor.shape, strict=True))
             and bool(_mentioned(at)) for v, at in placed]  # fmt: skip
    checked = [fill is not None for fill in filled or (None,) * len(placed)]
    data = len(op.operands) - len(placed)
    return data + sum(m or c for m, c in zip(moved, checked, strict=True))


def _beside(e: Expr) -> bool:
    """Return whether points of a vector read side by side, or one element together: their group's mean."""
    return isinstance(e, Sym) or (
        isinstance(e, BinOp)
        and e.op == "//"
        and isinstance(e.lhs, Sym)
        and isinstance(e.rhs, int)
        and e.rhs % SHARED_VECTOR == 0
    )


def row_problem(kernel: Func) -> RowReduceProblem:
    """A row kernel: rows and row length of its first reduction, one pass per reduction or stored map.

    Maps of rows alone, such as a root and its inverse, are no work of elements. Of what neighbours share
    within a map only words that follow from their place count once, as random bits do: the rest is in the
    coefficients of rows, which were fitted with all of it per element.
    """
    ops = [op for op in kernel.body.ops if op.name != "tensor.return"]
    anchor = next(op for op in ops if op.name in REDUCING)
    rows = max(1, prod(dims(anchor, "par").values()))
    length = max(1, prod(dims(anchor, "red").values()))
    outputs = set(_outputs(kernel))
    passes = sum(1 for op in ops if op.name in REDUCING or set(op.results) & outputs)
    along = [op for op in ops if length == 1 or prod(domain(op).values()) > rows]
    work = float(sum(len(op.body.ops) - 1 for op in along if op.body is not None))
    words: Counter[int] = Counter()
    for op in along:
        if op.body is not None and any(o.name == "scalar.index" for o in op.body.ops):
            words.update(shared_work(op))
            work -= len(free_ops(op))
    work -= sum(n - n / neighbours for neighbours, n in words.items())
    read = sum(reached(kernel, p, apart=True) for p in kernel.params)
    written = sum(v.tensor.nbytes for v in outputs)
    points = rows * length
    shared = tuple(sorted((neighbours, n * points) for neighbours, n in words.items()))
    return RowReduceProblem(rows, length, read, written, int(max(0.0, work) * points), passes, shared)


def line_problem(kernel: Func, op: Op) -> LineProblem:
    """A kernel in which each thread takes its steps one after the other: a scan, or ordered updates."""
    par = dims(op, "par")
    size = max(1, prod(par.values()))
    if op.name == "tensor.scan":
        lines, elements = size // max(1, par[str(op["dim"])]), 1
    elif op.name == "tensor.recur":
        length = par[str(op["dim"])]
        lines, elements = size // max(1, length), max(1, length * length // 2)
    else:
        named = slices_of(op)
        shape = op.result.tensor.shape
        lines = prod(shape[d] for d in named)
        elements = max(1, op.result.tensor.size // max(1, lines))
    written = sum(v.tensor.nbytes for v in _outputs(kernel))
    steps = max(1, size // max(1, lines))
    read = max(0, traffic(kernel) - written)
    return LineProblem(max(1, lines), steps, elements, read, written, _work(op) * size)


def _work(op: Op) -> int:
    return recompute_cost(op) if op.body is None else max(0, len(op.body.ops) - 1)


@lru_cache(maxsize=1024)
def traffic(kernel: Func) -> int:
    """Bytes a kernel must move: its results, and of each parameter what its reads can reach. Memoised."""
    return sum(reached(kernel, p) for p in kernel.params) + sum(v.tensor.nbytes for v in _outputs(kernel))


def reached(kernel: Func, p: Value, *, apart: bool = False) -> int:
    """Bytes of the most of `p` that one op reads; where data decides, perhaps a single element.

    apart: whether places that an op reads the parameter at, none of which have an element in common, such as
    the parts of a sum, count all together; else those of them that most is read at.
    """
    most = 0
    for op in kernel.body.ops[:-1]:
        if op.name in ("tensor.gather", "tensor.scatter") and op.operands[0] is p:
            whole = op.name == "tensor.scatter"
            most = max(most, p.tensor.nbytes if whole else itemsize(p.tensor.dtype))
        read = dict.fromkeys(at for v, at in placed_reads(op) if v is p)
        if read:
            extents = tuple(domain(op).items())
            sizes = {at: _box_bytes(p.tensor, at, extents) for at in read}
            most = max(most, _apart_bytes(p.tensor, sizes, extents) if apart else max(sizes.values()))
    return most


def _apart_bytes(
    tensor: TensorType, sizes: Mapping[tuple[Expr, ...], int], extents: tuple[tuple[str, int], ...]
) -> int:
    """Bytes of all places together, the largest first, that have no element in common with those before."""
    ranges = {name: (0, n - 1) for name, n in extents}
    taken: list[tuple[tuple[int, int], ...]] = []
    total = 0
    for at in sorted(sizes, key=sizes.__getitem__, reverse=True):
        box = tuple(_span(e, n, ranges) for e, n in zip(at, tensor.shape, strict=True))
        if all(_disjoint(box, other) for other in taken):
            taken.append(box)
            total += sizes[at]
    return total


def _span(e: Expr, extent: int, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """The first and the last index within an extent that an expression takes."""
    low, high = interval(e, ranges)
    return int(max(low, 0)), int(min(high, extent - 1))


def _disjoint(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> bool:
    """Return whether two boxes have no element in common."""
    return any(a[1] < b[0] or b[1] < a[0] for a, b in zip(one, other, strict=True))


@lru_cache(maxsize=4096)
def _box_bytes(tensor: TensorType, at: tuple[Expr, ...], extents: tuple[tuple[str, int], ...]) -> int:
    """Bytes of what is read at such an index over all points of a domain."""
    size, rank = itemsize(tensor.dtype), len(tensor.shape)
    ranges = {name: (0, n - 1) for name, n in extents}
    box = size
    for d, (e, extent) in enumerate(zip(at, tensor.shape, strict=True)):
        low, high = _span(e, extent, ranges)
        span = max(0, high - low + 1)
        taken = -(-span // index_step(e, ranges))
        # Neighbours in memory come along with what is taken.
        box *= taken if d < rank - 1 else min(span, taken * max(1, SECTOR_BYTES // size))
    return box


def _outputs(kernel: Func) -> tuple[Value, ...]:
    return kernel.body.ops[-1].operands


def _mentioned(at: Sequence[object]) -> set[str]:
    return {n for e in at for n in symbols(e)}  # type: ignore[arg-type]


def _size(names: Sequence[str], sizes: Mapping[str, int]) -> int:
    return prod(sizes[n] for n in names)


@dataclass(frozen=True)
class _Axis:
    extent: int = 1
    size: int = 1
    window: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0


def _axis(op: Op, name: str, windows: Sequence[tuple[str, str]]) -> _Axis:
    """The walk of one parallel dimension over its dimension of the first operand."""
    if not name:
        return _Axis()
    sizes = domain(op)
    extent = sizes[name]
    window = dict(windows).get(name, "")
    ranges = {d: (0, n - 1) for d, n in sizes.items()}
    for e, size in zip(reads(op)[0], op.operands[0].tensor.shape, strict=True):
        if name not in set(symbols(e)):
            continue
        form = coefficients(
            e, [name, window] if window else [name], {d: r for d, r in ranges.items() if r[1] > 0}
        )
        if form is None or not isinstance(form[1], int) or form[0].get(name, 1) <= 0:
            continue
        stride, dilation = form[0].get(name, 1), max(1, form[0].get(window, 1))
        taps = sizes[window] if window else 1
        before = max(0, -form[1])
        reach = (extent - 1) * stride + (taps - 1) * dilation + 1
        return _Axis(extent, size, taps, stride, dilation, before, max(0, reach - before - size))
    return _Axis(extent, extent)


def _geometry(vertical: _Axis, horizontal: _Axis) -> dict[str, Any]:
    """The fields that the problems of contractions and windows share."""
    return {
        "h": vertical.extent,
        "w": horizontal.extent,
        "f_h": vertical.window,
        "f_w": horizontal.window,
        "stride_h": vertical.stride,
        "stride_w": horizontal.stride,
        "dilation_h": vertical.dilation,
        "dilation_w": horizontal.dilation,
        "pad": (vertical.before, horizontal.before, vertical.after, horizontal.after),
        "h_in": vertical.size,
        "w_in": horizontal.size,
    }
