"""What the constants that a kernel is called with mean to a library: scales, masks of zeros, causal masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import Attr, Func, Module, Pairs, Ref, Value
from tilewright.library_attention import MASKED

#: elements of a constant that is looked at as a mask
_MOST = 1 << 22


class Known:
    """The constants of a module as kernels know them, each looked at once."""

    def __init__(self, module: Module) -> None:
        self._arrays = {
            op.result: np.asarray(module.constants[str(op["name"])])
            for op in module.main.body.ops
            if op.name == "tensor.constant" and str(op["name"]) in module.constants
        }
        self._facts: dict[tuple[Value, bool], Attr] = {}
        self._sites: dict[str, list[Sequence[Value]]] = {}
        for op in module.main.body.ops:
            ref = op.get("callee")
            if isinstance(ref, Ref):
                self._sites.setdefault(ref.name, []).append(op.operands)

    def told(self, kernel: Func, operands: Sequence[Value] | None = None) -> Func:
        """The kernel with the attribute `known`: parameters that are a number everywhere, or a causal mask.

        operands: what the kernel is called with; None asks for what is true of all its calls. Only kernels
        with several contractions may be attention, so only their masks are looked at.
        """
        sites = [operands] if operands is not None else self._sites.get(kernel.name, [])
        masks = sum(op.name == "tensor.contract" for op in kernel.body.ops) > 1
        found: dict[str, Attr] = {}
        for i in range(len(kernel.params) if sites else 0):
            facts = {self._fact(site[i], masks) for site in sites}
            if len(facts) == 1 and (fact := facts.pop()) is not None:
                found[f"p{i}"] = fact
        return kernel.with_attrs(known=Pairs.of(found)) if found else kernel

    def _fact(self, value: Value, masks: bool) -> Attr:
        if value not in self._arrays:
            return None
        key = (value, masks)
        if key not in self._facts:
            array = self._arrays[value]
            self._facts[key] = fact_of(array) if array.size <= (_MOST if masks else 1) else None
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
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.size != array.shape[-1] ** 2:
        return None
    square = array.reshape(array.shape[-2:])
    seen = np.tri(len(square), dtype=bool)
    if square.dtype == np.bool_:
        return "causal" if (square == seen).all() else None
    hides = bool((square[seen] == 0).all() and (square[~seen].astype(np.float64) <= MASKED).all())
    return "causal" if hides else None
