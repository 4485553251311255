"""Merges kernels that call one another's results into one function over the values around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from tilewright.ir import Block, Expr, Func, Level, Module, Op, TensorType, Type, Value
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import callee_of, dims, domain, fills, ranges_of, reads
from tilewright.passes.analysis.index_sets import row_major_offset
from tilewright.passes.rewriting.values import rename_dims


def is_plain(op: Op) -> bool:
    """Return whether an op calls a kernel and says nothing else about the call."""
    return op.name == "tensor.call" and [name for name, _ in op.attrs] == ["callee"]


def kernel_of(op: Op, kernels: Mapping[str, Func]) -> Func | None:
    """The one of these kernels that a call runs; None for other ops, and for calls that say more."""
    return kernels.get(callee_of(op)) if is_plain(op) else None


def joinable_kernels(module: Module) -> dict[str, Func]:
    """Kernels about which no other pass has decided anything that would be lost, by name."""
    return {f.name: f for f in module.funcs if f.name != "main" and not f.attrs}


def merged(
    calls: Sequence[Op], kernels: dict[str, Func], outputs: Set[Value], name: str, *, once: bool = False
) -> tuple[Func, list[Value], list[Value]]:
    """One function that does what the calls do, in their order.

    Gives the function, the values of @main it is called with, and those of `outputs` it returns. A value that
    one kernel writes and another reads in a different shape is read at the same place of the dense buffer.
    once: so is a value that several kernels read in different shapes, else a parameter of each shape. What
    indices address keeps the shape that they are of.
    """
    m = _Merger(once)
    for call in calls:
        m.inline(call, kernels[callee_of(call)])
    returned = [v for call in calls for v in call.results if v in outputs]
    last = Op("tensor.return", tuple(m.inside[v] for v in returned))
    body = Block(tuple(m.params.values()), (*m.ops, last))
    types = tuple(m.inside[v].type for v in returned)
    return Func(Level.TENSOR, name, body, types), [v for v, _ in m.params], returned


class _Merger:
    def __init__(self, once: bool) -> None:
        self.once = once
        self.params: dict[tuple[Value, Type], Value] = {}
        self.inside: dict[Value, Value] = {}
        self.ops: list[Op] = []
        self.reduced: set[str] = set()

    def inline(self, call: Op, kernel: Func) -> None:
        """Append a copy of the kernel's ops with the call's values."""
        env: dict[Value, Value] = {}
        targets = _addressed(kernel)
        for v, p in zip(call.operands, kernel.params, strict=True):
            key = (v, p.type)
            if v in self.inside:
                env[p] = self.inside[v]
                continue
            known = next((q for (w, _), q in self.params.items() if w is v), None) if self.once else None
            same = known is not None and known.tensor.shape == p.tensor.shape
            if known is not None and known.tensor.dense and p.tensor.dense and (same or p not in targets):
                env[p] = known
                continue
            if key not in self.params:
                self.params[key] = Value(p.type, p.hint or v.hint)
            env[p] = self.params[key]
        for op in kernel.body.ops[:-1]:
            results = tuple(Value(r.type, r.hint) for r in op.results)
            self.ops.append(replace(self._renamed(_reading(op, env)), results=results))
            env.update(zip(op.results, results, strict=True))
        self.inside.update(
            {v: env[r] for v, r in zip(call.results, kernel.body.ops[-1].operands, strict=True)}
        )

    def _renamed(self, op: Op) -> Op:
        """The op with reduced dimensions whose names no other op of the function reduces over.

        Passes that drop or merge dimensions of a kernel know them by name.
        """
        names: dict[str, str] = {}
        for d in dims(op, "red"):
            new, number = d, 0
            while new in self.reduced or (new != d and new in domain(op)):
                number += 1
                new = f"{d}{number}"
            self.reduced.add(new)
            names[d] = new
        return op if all(a == b for a, b in names.items()) else rename_dims(op, names)


def _addressed(kernel: Func) -> set[Value]:
    """The values whose elements indices name, as data of gathers: their shape is part of the address."""
    ops = kernel.body.ops[:-1]
    return {v for op in ops for v in op.operands[: len(op.operands) - len(reads(op))]}


def _reading(op: Op, env: dict[Value, Value]) -> Op:
    """The op with its operands replaced, and read where they lie in the shape they have now."""
    operands = tuple(env[v] for v in op.operands)
    places = list(reads(op))
    first = len(operands) - len(places)
    for i, (old, new) in enumerate(zip(op.operands, operands, strict=True)):
        if i >= first and old.tensor.shape != new.tensor.shape:
            places[i - first] = _moved(op, places[i - first], old.tensor, new.tensor)
    return op.with_operands(operands).with_attrs(reads=tuple(places))


def _moved(op: Op, at: Sequence[Expr], seen: TensorType, stored: TensorType) -> tuple[Expr, ...]:
    """The index in `stored` of the element at `at` in `seen`, another shape of the same dense buffer."""
    ranges = ranges_of(op)
    offset = row_major_offset(at, seen.shape)
    out: list[Expr] = []
    step = stored.size
    for i, n in enumerate(stored.shape):
        step //= max(1, n)
        e = offset // step
        out.append(simplify(e % n if i else e, ranges))
    return tuple(out)


def reshapes_filled(calls: Sequence[Op], kernels: dict[str, Func]) -> bool:
    """Return whether a kernel reads, with a value for outside, a result that it sees in another shape."""
    made = {v for c in calls for v in c.results}
    for call in calls:
        kernel = kernels[callee_of(call)]
        for v, p in zip(call.operands, kernel.params, strict=True):
            if v in made and v.tensor.shape != p.tensor.shape and _reads_filled(kernel, p):
                return True
    return False


def _reads_filled(kernel: Func, p: Value) -> bool:
    return any(
        v is p and fill is not None
        for op in kernel.body.ops[:-1]
        if op.name != "tensor.gather"
        for v, fill in zip(op.operands, fills(op), strict=False)
    )
