"""Constants that a kernel is called with as a library sees them: numbers, masks of zeros, causal masks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from tilewright.ir import Builder, Func, Module, Pairs, Ref, TensorType, Value
from tilewright.ir.types import storage_dtype
from tilewright.passes.analysis.position_masks import (
    HIDDEN,
    MaskNumbers,
    computed_mask,
    is_square,
    mask_numbers,
)
from tilewright.passes.rewriting.values import replace_in_op

#: elements of a constant that is looked at as a mask
_MOST = 1 << 22
_FLOATS = ("f16", "bf16", "f32")


class KernelConstants:
    """The constants of a module as its kernels are called with them, each looked at once."""

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

    def computed_in(self, kernel: Func, operands: Sequence[Value] | None = None) -> Func:
        """The kernel with what is one number everywhere, or a causal mask, computed by itself.

        operands: what the kernel is called with; None asks for what is true of all its calls. Only kernels
        with several contractions may be attention, so only their masks are looked at.
        """
        sites = [operands] if operands is not None else self._sites.get(kernel.name, [])
        masks = sum(op.name == "tensor.contract" for op in kernel.body.ops) > 1
        facts_by_position: dict[int, float | str] = {}
        for i, p in enumerate(kernel.params if sites else ()):
            if p.tensor.dtype in (*_FLOATS, "bool"):
                facts = {self._fact(site[i], masks) for site in sites}
                fact = facts.pop()
                if not facts and fact is not None and (fact != "causal" or is_square(p.tensor.shape)):
                    facts_by_position[i] = fact
        return with_facts(kernel, facts_by_position)

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
    numbers = mask_numbers(array)
    if numbers is None:
        return None
    seen, hidden = numbers
    if array.dtype == np.bool_:
        return "causal" if numbers == (True, False) else None
    if seen == hidden:
        return float(seen)
    return "causal" if seen == 0 and hidden <= HIDDEN else None


def with_facts(kernel: Func, facts: Mapping[int, float | str]) -> Func:
    """The kernel that computes these parameters (by position) instead of reading them; it still takes them.

    rewrite:  %y = tensor.map(%x, %p3, ..)   -->   %n = tensor.map(), reads = [] {0.125}
                                                   %y = tensor.map(%x, %n, ..)
    """
    b = Builder()
    new = {
        kernel.params[i]: computed_mask(b, kernel.params[i].tensor, _numbers(fact, kernel.params[i].tensor))
        for i, fact in facts.items()
    }
    if not new:
        return kernel
    ops = (*b.ops, *(replace_in_op(op, new) for op in kernel.body.ops))
    computing = replace(kernel, body=kernel.body.with_ops(ops))
    return computing.with_attrs(known=Pairs.of({f"p{i}": fact for i, fact in facts.items()}))


def facts_in(kernel: Func) -> dict[int, float | str]:
    """The facts that `with_facts` put into a kernel, by position."""
    known = kernel.get("known")
    items = known.items if isinstance(known, Pairs) else ()
    return {int(name[1:]): fact for name, fact in items if isinstance(fact, float | str)}


def with_true_constants(program: Module, constants: Collection[int], kernel: Func) -> Module:
    """A program that measures a kernel, its constants at these positions being those that the kernel knows.

    program: what `alone` or `timed_program` gives; it names constants by their order.
    """
    names = {i: f"constant{n}" for n, i in enumerate(sorted(constants))}
    arrays = {names[i]: _array(fact, kernel.params[i].tensor) for i, fact in facts_in(kernel).items()}
    used = {name: array for name, array in arrays.items() if name in program.constants}
    return program.with_constants(program.constants.updated(used)) if used else program


def _array(fact: float | str, t: TensorType) -> np.ndarray:
    dtype = storage_dtype(t.dtype)
    seen, hidden = _numbers(fact, t)
    if fact != "causal":
        return np.full(t.shape, seen, dtype)
    shown = np.where(np.tri(t.shape[-1], dtype=bool), np.float32(seen), np.float32(hidden)).astype(dtype)
    return np.broadcast_to(shown, t.shape)


def _numbers(fact: float | str, t: TensorType) -> MaskNumbers:
    if fact != "causal":
        return float(fact), float(fact)
    return (True, False) if t.dtype == "bool" else (0.0, -inf)
