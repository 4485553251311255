"""What the constants that a kernel is called with mean to a library: scales, masks of zeros, causal masks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf, prod

import numpy as np

from tilewright.ir import Func, Level, Module, Op, Pairs, Ref, Sym, TensorType, Value, interpret
from tilewright.ir.builder import Builder, scalar_body, structured
from tilewright.ir.types import storage_dtype
from tilewright.passes.kernels.attention.reach import HIDDEN
from tilewright.passes.rewriting.values import replace_in_op

#: elements of a constant that is looked at as a mask
_MOST = 1 << 22
_FLOATS = ("f16", "bf16", "f32")


class Known:
    """The constants of a module as kernels know them, each looked at once."""

    def __init__(self, module: Module) -> None:
        self._constants = module.constants
        self._names = {
            op.result: str(op["name"])
            for op in module.main.body.ops
            if op.name == "tensor.constant" and str(op["name"]) in module.constants
        }
        self._facts: dict[tuple[Value, bool], float | str | None] = {}
        self._sites: dict[str, list[Sequence[Value]]] = {}
        for op in module.main.body.ops:
            ref = op.get("callee")
            if isinstance(ref, Ref):
                self._sites.setdefault(ref.name, []).append(op.operands)

    def told(self, kernel: Func, operands: Sequence[Value] | None = None) -> Func:
        """The kernel with what is one number everywhere, or a causal mask, computed by itself.

        operands: what the kernel is called with; None asks for what is true of all its calls. Only kernels
        with several contractions may be attention, so only their masks are looked at.
        """
        sites = [operands] if operands is not None else self._sites.get(kernel.name, [])
        masks = sum(op.name == "tensor.contract" for op in kernel.body.ops) > 1
        found: dict[int, float | str] = {}
        for i, p in enumerate(kernel.params if sites else ()):
            if p.tensor.dtype in (*_FLOATS, "bool"):
                facts = {self._fact(site[i], masks) for site in sites}
                fact = facts.pop()
                if not facts and fact is not None and (fact != "causal" or _square(p.tensor.shape)):
                    found[i] = fact
        return with_facts(kernel, found)

    def _fact(self, value: Value, masks: bool) -> float | str | None:
        if value not in self._names or value.tensor.size > (_MOST if masks else 1):
            return None  # the numbers of others are not even read: some are drawn when they are
        key = (value, masks)
        if key not in self._facts:
            self._facts[key] = fact_of(np.asarray(self._constants[self._names[value]]))
        return self._facts[key]


def fact_of(array: np.ndarray) -> float | str | None:
    """The number that all elements are, `causal` for a mask that hides later keys, or None.

    A causal mask is [.., n, n]: true, or 0 to be added, where the column is not after the row; false, or a
    number so negative that its exponential vanishes, elsewhere.
    """
    flat = array.reshape(-1)
    if flat.size == 0:
        return None
    if (flat == flat[0]).all():
        return None if array.dtype == np.bool_ else float(flat[0])
    if not _square(array.shape):
        return None
    square = array.reshape(array.shape[-2:])
    seen = np.tri(len(square), dtype=bool)
    if square.dtype == np.bool_:
        return "causal" if (square == seen).all() else None
    hides = bool((square[seen] == 0).all() and (square[~seen].astype(np.float64) <= HIDDEN).all())
    return "causal" if hides else None


def _square(shape: Sequence[int]) -> bool:
    """Whether these are the extents of one square matrix."""
    return len(shape) > 1 and shape[-1] == shape[-2] and prod(shape) == shape[-1] ** 2


def with_facts(kernel: Func, facts: Mapping[int, float | str]) -> Func:
    """The kernel that computes these parameters (by position) instead of reading them; it still takes them.

    rewrite:  %y = tensor.map(%x, %p3, ..)   -->   %n = tensor.map(), reads = [] {0.125}
                                                   %y = tensor.map(%x, %n, ..)
    """
    b = Builder()
    new = {
        kernel.params[i]: _causal(b, kernel.params[i].tensor)
        if fact == "causal"
        else _number(b, kernel.params[i].tensor, float(fact))
        for i, fact in facts.items()
    }
    if not new:
        return kernel
    ops = (*b.ops, *(replace_in_op(op, new) for op in kernel.body.ops))
    told = replace(kernel, body=kernel.body.with_ops(ops))
    return told.with_attrs(known=Pairs.of({f"p{i}": fact for i, fact in facts.items()}))


def facts_in(kernel: Func) -> dict[int, float | str]:
    """What `with_facts` was told, by position."""
    known = kernel.get("known")
    items = known.items if isinstance(known, Pairs) else ()
    return {int(name[1:]): fact for name, fact in items if isinstance(fact, float | str)}


def with_true_constants(program: Module, constants: Collection[int], kernel: Func) -> Module:
    """A program that measures a kernel, its constants at these positions being those that the kernel knows.

    program: what `alone` or `standing_alone` gives; it names constants by their order.
    """
    names = {i: f"constant{n}" for n, i in enumerate(sorted(constants))}
    arrays = {names[i]: _array(fact, kernel.params[i].tensor) for i, fact in facts_in(kernel).items()}
    kept = {name: array for name, array in arrays.items() if name in program.constants}
    return program.with_constants(program.constants.updated(kept)) if kept else program


def _array(fact: float | str, t: TensorType) -> np.ndarray:
    dtype = storage_dtype(t.dtype)
    if fact != "causal":
        return np.full(t.shape, fact, dtype)
    seen = np.tri(t.shape[-1], dtype=bool)
    shown = seen if t.dtype == "bool" else np.where(seen, np.float32(0.0), np.float32(-inf)).astype(dtype)
    return np.broadcast_to(shown, t.shape)


def _number(b: Builder, t: TensorType, number: float) -> Value:
    inner, _ = scalar_body([])
    (value,) = inner.emit("scalar.const", (), {"value": number, "dtype": t.dtype})
    inner.emit("scalar.yield", [value])
    return _map(b, t, inner)


def _causal(b: Builder, t: TensorType) -> Value:
    """True, or 0, where the last index is not above the one before, else false, or -inf."""
    inner, _ = scalar_body([])
    distance = Sym(f"i{t.rank - 2}") - Sym(f"i{t.rank - 1}")
    (at,) = inner.emit("scalar.index", (), {"at": distance, "dtype": "i32"})
    (zero,) = inner.emit("scalar.const", (), {"value": 0, "dtype": "i32"})
    (seen,) = inner.emit("scalar.ge", [at, zero])
    if t.dtype != "bool":
        shown, hidden = (
            inner.emit("scalar.const", (), {"value": x, "dtype": t.dtype})[0] for x in (0.0, -inf)
        )
        (seen,) = inner.emit("scalar.select", [seen, shown, hidden])
    inner.emit("scalar.yield", [seen])
    return _map(b, t, inner)


def _map(b: Builder, t: TensorType, inner: Builder) -> Value:
    par = {f"i{i}": n for i, n in enumerate(t.shape)}
    plain = TensorType(t.dtype, t.shape)
    (value,) = structured(b, "tensor.map", [], par=par, reads=(), body=inner.block([]), types=[plain])
    return value


def causal_values(kernel: Func) -> set[Value]:
    """What a kernel computes from indices alone and is a causal mask."""
    closed: dict[Value, Op] = {}
    found: set[Value] = set()
    for op in kernel.body.ops[:-1]:
        if len(op.results) != 1 or any(v not in closed for v in op.operands):
            continue
        closed[op.result] = op
        t = op.result.tensor
        if _square(t.shape) and t.size <= _MOST:
            b = Builder()
            b.emit("tensor.return", [op.result])
            body = replace(kernel.body, params=(), ops=(*closed.values(), *b.ops))
            (array,) = interpret(Module("mask", (Func(Level.TENSOR, "main", body, (t,)),)))
            found |= {op.result} if fact_of(np.asarray(array)) == "causal" else set()
    return found
