"""Pass stack-rows: products of several inputs with one constant become one product of stacked rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.ir import Builder, Func, Level, Module, Op, TensorType, Value
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import producers, replace_in_op

#: products of one constant that are worth a rewrite, at least
FEWEST = 3


@register_pass(Level.GRAPH, requires={"shapes-known"})
def stack_rows(
    module: Module, ctx: PassContext, *, factors: Literal["", "tf32", "split"] = "", always: bool = False
) -> Module:
    """Compute products with one constant, none of which needs another one's result, at once.

    rewrite:  %0 = graph.dense(%a, w); %1 = graph.dense(%b, w); ...
        -->   %2 = graph.concatenate(%a, %b, ..., axis = 0); %3 = graph.dense(%2, w);
              %0 = graph.strided_slice(%3, ...); %1 = graph.strided_slice(%3, ...); ...
    rewrite:  %0 = graph.dense(graph.concatenate(%a, %h, axis = 1), w); %i = f(%0);
              %1 = graph.dense(graph.concatenate(%b, %i, axis = 1), w); ...
        -->   as before for %a, %b, ... and the columns of w that they meet, and
              %0 = graph.add(graph.strided_slice(%3, ...), graph.dense(%h, "w.rest")); %i = f(%0); ...

    The steps of a recurrence multiply inputs and state with the same weights: inputs of all steps are there
    before the first step, and what is left for the steps has fewer weights. A product of a piece that is zero
    is left out. Done on GPUs with clusters whose registers hold what is left (`join-recurrences`), where the
    estimates of products and concatenations fall by more than the longest chain of them grows, which waits
    for the last of the inputs. Only sums in float32 are taken apart. factors: what float32 factors will be
    allowed, as of `merge-products`. always: whatever the estimates say.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if module.main.level is not Level.GRAPH or isinstance(hardware, CpuHardware):
        return module

    def seconds(op: Op) -> float:
        if op.name == "graph.dense":
            return ctx.estimator.op_s(op, hardware, factors=factors)
        return ctx.estimator.op_s(op, hardware) if op.name == "graph.concatenate" else 0.0

    pool = ConstantPool(module.constants)
    main, done = module.main, set[str]()
    while True:
        groups = list(_groups(main, pool))
        steps = [g for g in groups if g.rest and (always or g.rest_bytes <= hardware.cluster_register_bytes)]
        group = next((g for g in groups if g.weights not in done and _worth(main, g, steps)), None)
        if group is None:
            break
        done.add(group.weights)
        stacked = _stacked(main, group, pool)
        if always or _gained_s(main, stacked, seconds) > 0.0:
            main = stacked
    if main is module.main:
        return module
    return module.with_funcs(tuple(main if f is module.main else f for f in module.funcs)).with_constants(
        pool.constants
    )


@dataclass(frozen=True, eq=False)
class _Group:
    """Products with one constant: what each multiplies, in pieces along the sum, of which some are inputs."""

    weights: str
    products: tuple[Op, ...]
    pieces: tuple[tuple[Value, ...], ...]
    inputs: tuple[int, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(v.tensor.shape[1] for v in self.pieces[0])

    @property
    def rest(self) -> tuple[int, ...]:
        """The pieces that earlier products of the group determine."""
        return tuple(n for n in range(len(self.widths)) if n not in self.inputs)

    @property
    def rest_bytes(self) -> int:
        """Bytes of the weights that meet these."""
        weights = self.products[0].operands[1].tensor
        return weights.shape[0] * sum(self.widths[n] for n in self.rest) * itemsize(weights.dtype)


def _worth(func: Func, group: _Group, steps: Sequence[_Group]) -> bool:
    """Return whether a group has inputs to stack, for steps of which one kernel may be made."""
    exact = group.products[0].result.tensor.dtype == "f32" or len(group.widths) == 1
    if not group.inputs or not exact:
        return False
    later = _after(func, group.products)
    read = (v for g in steps for op in g.products for v in op.operands)
    return group in steps or (not group.rest and any(v in later for v in read))


def _groups(func: Func, pool: ConstantPool) -> Iterator[_Group]:
    """Products of a function that can be stacked, by their constant."""
    made_by = producers(func.body)
    found: dict[tuple[str, object], list[Op]] = defaultdict(list)
    for op in func.body.ops:
        if op.name == "graph.dense" and op.operands[0].tensor.rank == 2:
            weights = made_by.get(op.operands[1])
            if weights is not None and pool.array(weights) is not None:
                found[str(weights["name"]), op.attrs].append(op)
    for (name, _), products in found.items():
        pieces = tuple(_pieces(op, made_by) for op in products)
        if len(products) < FEWEST or len({tuple(v.type for v in p) for p in pieces}) > 1:
            continue
        later = _after(func, products)
        numbers = range(len(pieces[0]))
        inputs = tuple(n for n in numbers if not any(p[n] in later for p in pieces))
        yield _Group(name, tuple(products), pieces, inputs)


def _pieces(op: Op, made_by: dict[Value, Op]) -> tuple[Value, ...]:
    """What a product multiplies, by the values that are joined along its sum."""
    waiting, pieces = [op.operands[0]], list[Value]()
    while waiting:
        v = waiting.pop()
        joined = made_by.get(v)
        if joined is not None and joined.name == "graph.concatenate" and joined["axis"] in (1, -1):
            waiting += reversed(joined.operands)
        else:
            pieces.append(v)
    return tuple(pieces)


def _after(func: Func, products: Sequence[Op]) -> set[Value]:
    """All values that are computed from the results of products."""
    later = {r for op in products for r in op.results}
    for op in func.body.ops:
        if any(v in later for v in op.operands):
            later.update(op.results)
    return later


def _stacked(func: Func, group: _Group, pool: ConstantPool) -> Func:
    """The function with one product for the inputs of all products of a group."""
    made_by = producers(func.body)
    place = {v: i for i, v in enumerate((*func.params, *(r for op in func.body.ops for r in op.results)))}
    first = group.products[0]
    b = Builder(first.loc)
    # Products with other constants may stack the same inputs in another order: one array serves all.
    order = sorted(range(len(group.products)), key=lambda k: place[group.pieces[k][group.inputs[0]]])
    whole: Value | None = None
    for n in group.inputs:
        stacked = _rows(b, [group.pieces[k][n] for k in order], made_by)
        weights = _columns(b, group, (n,), pool, made_by)
        (part,) = b.emit("graph.dense", (stacked, weights), dict(first.attrs))
        whole = part if whole is None else b.value("graph.add", whole, part)
    assert whole is not None
    replaced: dict[Value, Value] = {}
    left: Value | None = None
    start = 0
    for k in order:
        product = group.products[k]
        shape = product.result.tensor.shape
        with b.at(product.loc):
            part = b.value("graph.strided_slice", whole, begin=(start, 0), size=shape, strides=(1, 1))
            state = [group.pieces[k][n] for n in group.rest]
            if not all(_is_zero(v, made_by, pool) for v in state):
                left = left or _columns(b, group, group.rest, pool, made_by)
                (own,) = b.emit("graph.dense", (_joined(b, state, 1), left), dict(product.attrs))
                part = b.value("graph.add", own, part)
        replaced[product.result] = part
        start += shape[0]
    ops = [replace_in_op(op, replaced) for op in (*b.ops, *func.body.ops) if op not in group.products]
    block = func.body.with_ops(_ordered(ops))
    return func.with_body(block.with_ops(live_ops(block)))


def _rows(b: Builder, values: Sequence[Value], made_by: dict[Value, Op]) -> Value:
    """Values one below the other; where they are all rows of one array in order, that array."""
    rows, width = len(values) * values[0].tensor.shape[0], values[0].tensor.shape[1]
    parts = [_split_part(v, made_by) for v in values]
    cut = parts[0][0]
    if cut is not None and parts == [(cut, k) for k in range(len(cut.results))]:
        source = cut.operands[0]
        axis = int(cut["axis"]) % source.tensor.rank  # type: ignore[arg-type]
        if all(n == 1 for n in source.tensor.shape[:axis]):
            return b.value("graph.reshape", source, newshape=(rows, width))
    return _joined(b, values, 0)


def _split_part(v: Value, made_by: dict[Value, Op]) -> tuple[Op | None, int]:
    """The split that a value is a part of, perhaps in another shape, and which part."""
    op = made_by.get(v)
    while op is not None and op.name in ("graph.squeeze", "graph.reshape"):
        v, op = op.operands[0], made_by.get(op.operands[0])
    return (op, op.results.index(v)) if op is not None and op.name == "graph.split" else (None, 0)


def _joined(b: Builder, values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else b.emit("graph.concatenate", values, {"axis": axis})[0]


def _columns(
    b: Builder, group: _Group, pieces: Sequence[int], pool: ConstantPool, made_by: dict[Value, Op]
) -> Value:
    """The weights that some of the pieces meet."""
    value = group.products[0].operands[1]
    if len(pieces) == len(group.widths):
        return value
    array = pool.array(made_by[value])
    assert array is not None
    starts = np.cumsum((0, *group.widths))
    part = np.concatenate([array[:, starts[n] : starts[n + 1]] for n in pieces], axis=1)
    name = pool.add(f"{group.weights}.columns", np.ascontiguousarray(part))
    (result,) = b.emit("graph.constant", (), {"name": name}, types=[_type_of(value, part.shape[1])])
    return result


def _ordered(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Ops in an order in which each comes after what it reads, else as they are."""
    made_by = {r: op for op in ops for r in op.results}
    out: dict[Op, None] = {}
    for last in ops:
        waiting = [last]
        while waiting:
            op = waiting[-1]
            missing = [m for v in op.operands if (m := made_by.get(v)) is not None and m not in out]
            if missing:
                waiting += missing
                continue
            out.setdefault(waiting.pop())
    return tuple(out)


def _type_of(weights: Value, columns: int) -> TensorType:
    return replace(weights.tensor, shape=(weights.tensor.shape[0], columns))


def _is_zero(v: Value, made_by: dict[Value, Op], pool: ConstantPool) -> bool:
    array = pool.array(made_by.get(v))
    return array is not None and not np.any(array)


def _gained_s(before: Func, after: Func, seconds: Callable[[Op], float]) -> float:
    """Return the seconds that products and copies take less, without what their longest chain takes more."""
    (whole_s, longest_s), (new_s, new_longest_s) = (_seconds_of(f, seconds) for f in (before, after))
    return whole_s - new_s - max(0.0, new_longest_s - longest_s)


def _seconds_of(func: Func, seconds: Callable[[Op], float]) -> tuple[float, float]:
    """Return the seconds of all products and copies, and those of the longest chain."""
    whole_s, ends_s = 0.0, dict.fromkeys(func.params, 0.0)
    for op in func.body.ops:
        own_s = seconds(op)
        end_s = max((ends_s[v] for v in op.operands), default=0.0) + own_s
        whole_s += own_s
        ends_s.update(dict.fromkeys(op.results, end_s))
    return whole_s, max(ends_s.values(), default=0.0)
