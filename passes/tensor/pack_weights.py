"""Stores constant weights of contractions in the order their kernel reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir import Expr, Func, Level, Module, Op, Pairs, Ref, Sym, Value
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.kernel_problem import contract_roles


@register_pass(Level.TENSOR, requires={"kernels-outlined", "parameters-chosen"})
def pack_weights(module: Module, ctx: PassContext) -> Module:
    """Permute the constant second operand of contraction kernels so that what a kernel reads is contiguous.

    rewrite:  tensor.contract(%x, %w: f32[64, 64, 3, 3], reads = [..., [k, c, r, s]])
              -->   tensor.contract(%x, %w: f32[64, 3, 3, 64], reads = [..., [c, r, s, k]])

    Vector loads of neighbouring columns need it; kernels on tensor cores (skeleton `matrix`) copy runs of
    the channel that they cut into chunks instead: [r, s, k, c]. Kernels of CPUs (staging `direct`) read all
    weights of one tile of columns after the other: [k // tile, c, r, s, k % tile], so that the processor
    prefetches them; what the last tile has too many of is zero. The weights are permuted once, at compile
    time. Kernels that multiply in TF32 get weights that are rounded to it, and are told by `rounded` in their
    parameters.
    """
    main = module.main
    constants = {op.result: op for op in main.body.ops if op.name == "tensor.constant"}
    funcs = {f.name: f for f in module.funcs}
    packed: dict[str, np.ndarray] = {}
    fresh: dict[tuple[Value, _Order], Op] = {}
    calls_of: dict[object, list[Op]] = {}
    for op in main.body.ops:
        calls_of.setdefault(op.get("callee"), []).append(op)
    for name, kernel in list(funcs.items()):
        found = _packing(kernel)
        calls = calls_of.get(Ref(name), [])
        if found is None or not calls:
            continue
        weights = [op.operands[found.position] for op in calls]
        if any(w not in constants or str(constants[w]["name"]) not in module.constants for w in weights):
            continue
        funcs[name] = _permute(kernel, found)
        for w in weights:
            _constant(module, kernel.params[found.position], constants[w], found, packed, fresh)
    if not fresh:
        return module
    packings = {f.name: _packing(f) for f in module.funcs if funcs[f.name] is not f}
    new_main = _redirect(main, packings, fresh)
    out = module.with_funcs(tuple(new_main if f.name == "main" else funcs[f.name] for f in module.funcs))
    return out.with_constants(module.constants.updated(packed))


@dataclass(frozen=True)
class _Order:
    """How weights are stored: order of their dimensions, whether rounded to TF32, and the tile into which the
    last one is cut (0: not cut), whose number then comes first."""

    axes: tuple[int, ...]
    rounds: bool
    tile: int = 0

    @property
    def suffix(self) -> str:
        """What tells such weights from others, for names."""
        tile = f"_by{self.tile}" if self.tile else ""
        return f"packed_{''.join(map(str, self.axes))}{tile}{'_tf32' if self.rounds else ''}"

    def at(self, place: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index of the element that lies at index `place` of the weights as they were."""
        moved = tuple(place[axis] for axis in self.axes)
        if not self.tile:
            return moved
        return (moved[-1] // self.tile, *moved[:-1], moved[-1] % self.tile)

    def shape(self, extents: Sequence[int]) -> tuple[int, ...]:
        """The extents of weights that had these."""
        moved = tuple(extents[axis] for axis in self.axes)
        return (-(-moved[-1] // self.tile), *moved[:-1], self.tile) if self.tile else moved

    def stored(self, array: np.ndarray) -> np.ndarray:
        """The weights in this order, contiguous."""
        moved = array.transpose(self.axes)
        if self.tile:
            missing = -moved.shape[-1] % self.tile
            moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, missing)])
            moved = np.moveaxis(moved.reshape(*moved.shape[:-1], -1, self.tile), -2, 0)
        return round_to_tf32(moved) if self.rounds else np.ascontiguousarray(moved)


@dataclass(frozen=True)
class _Packing:
    """Parameter position of the weights, and how they are stored."""

    position: int
    order: _Order


def _packing(kernel: Func) -> _Packing | None:
    """How the weights of a kernel are packed; None where they stay as they are."""
    if kernel.get("skeleton") not in ("contract", "matrix"):
        return None
    op = next(o for o in kernel.body.ops if o.name == "tensor.contract")
    at, columns = reads(op)[1], contract_roles(op).columns
    weights = op.operands[1]
    uses = sum(list(o.operands).count(weights) for o in kernel.body.ops)
    plain = all(isinstance(e, Sym) for e in at) and len(set(at)) == len(at)
    if weights not in kernel.params or uses != 1 or not plain or not columns:
        return None
    order = (
        _columns_last(at, columns) if kernel["skeleton"] == "contract" else _channel_last(kernel, at, columns)
    )
    rounds = kernel["skeleton"] == "matrix" and weights.tensor.dtype == "f32" and not _rounded(kernel)
    tile = _tile(kernel, weights.tensor.shape[order[-1]], columns[-1])
    if order == tuple(range(len(at))) and not rounds and not tile:
        return None
    return _Packing(kernel.params.index(weights), _Order(order, rounds, tile))


def _tile(kernel: Func, extent: int, column: str) -> int:
    """Columns that a work-item of a CPU's kernel computes, where there are several such tiles; else 0."""
    params = kernel["params"]
    if not isinstance(params, Pairs) or params.as_dict().get("staging") != "direct":
        return 0
    thread = params["thread"]
    assert isinstance(thread, Pairs)
    tile = int(str(thread[column]))
    return tile if 1 < tile < extent else 0


def _rounded(kernel: Func) -> bool:
    params = kernel["params"]
    return isinstance(params, Pairs) and bool(params.as_dict().get("rounded"))


def _columns_last(at: Sequence[Expr], columns: Sequence[str]) -> tuple[int, ...]:
    last = next(i for i, e in enumerate(at) if e == Sym(columns[-1]))
    return (*(i for i in range(len(at)) if i != last), last)


def _channel_last(kernel: Func, at: Sequence[Expr], columns: Sequence[str]) -> tuple[int, ...]:
    """All else, the columns in the order of the results, the channel."""
    params = kernel["params"]
    assert isinstance(params, Pairs)
    op = next(o for o in kernel.body.ops if o.name == "tensor.contract")
    inner = [*(Sym(d) for d in dims(op, "par") if d in columns), Sym(str(params["channel"]))]
    last = [i for e in inner for i, x in enumerate(at) if x == e]
    return (*(i for i in range(len(at)) if i not in last), *last)


def _permute(kernel: Func, packing: _Packing) -> Func:
    old, order = kernel.params[packing.position], packing.order
    new = Value(replace(old.tensor, shape=order.shape(old.tensor.shape)), old.hint)

    def edit(op: Op) -> Op:
        if old not in op.operands:
            return op
        at = list(reads(op))
        at[1] = order.at(at[1])
        return op.with_attrs(reads=tuple(at)).with_operands(
            tuple(new if v is old else v for v in op.operands)
        )

    params = tuple(new if p is old else p for p in kernel.params)
    packed = replace(kernel, body=replace(kernel.body, params=params, ops=tuple(map(edit, kernel.body.ops))))
    chosen = kernel["params"]
    if not order.rounds or not isinstance(chosen, Pairs):
        return packed
    return packed.with_attrs(params=Pairs.of({**dict(chosen.items), "rounded": True}))


def _constant(
    module: Module, param: Value, op: Op, packing: _Packing, packed: dict[str, np.ndarray],
    fresh: dict[tuple[Value, _Order], Op],
) -> None:  # fmt: skip
    """A constant op for the packed weights (as the kernel sees them, whatever shape the constant has)."""
    order = packing.order
    if (op.result, order) in fresh:
        return
    name = str(op["name"])
    array = order.stored(module.constants[name].reshape(param.tensor.shape))
    new_name = f"{name}.{order.suffix}"
    while new_name in module.constants and new_name not in packed:
        new_name += "_"
    packed[new_name] = array
    result = Value(replace(op.result.tensor, shape=array.shape), op.result.hint)
    fresh[(op.result, order)] = replace(op.with_attrs(name=new_name), results=(result,))


def round_to_tf32(array: np.ndarray) -> np.ndarray:
    """float32 numbers with 10 bits of mantissa, ties away from zero, as cvt.rna.tf32 gives them."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array), rounded, bits).view(np.float32)


def _redirect(
    main: Func,
    packings: dict[str, _Packing | None],
    fresh: dict[tuple[Value, _Order], Op],
) -> Func:
    def edit(op: Op) -> Op:
        ref = op.get("callee")
        found = packings.get(ref.name) if isinstance(ref, Ref) else None
        if found is None:
            return op
        operands = list(op.operands)
        operands[found.position] = fresh[(operands[found.position], found.order)].result
        return op.with_operands(tuple(operands))

    return main.with_body(main.body.with_ops((*fresh.values(), *map(edit, main.body.ops))))
