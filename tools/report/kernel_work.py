"""What a tensor-level kernel has to do: arithmetic operations and the bytes it must move."""

from __future__ import annotations

from math import prod

from tilewright.ir import Func, Op, ScalarType
from tilewright.ir.tensor.ops import domain
from tilewright.passes.kernels.kernel_problem import traffic

#: scalar ops that are no arithmetic: they name, place, choose or convert values
FREE = frozenset({"yield", "const", "index", "broadcast", "extract", "cast", "select"})


def kernel_operations(kernel: Func) -> int:
    """Useful arithmetic: each point of each op once, a fused multiply-add counted as two operations.

    Taps on padding count, as is the custom; comparisons, selections, conversions and index arithmetic do not.
    """
    return sum(prod(domain(op).values()) * _per_point(op) for op in kernel.body.ops)


def kernel_bytes(kernel: Func) -> int:
    """Compulsory traffic: what the kernel's reads reach of its parameters, and its results."""
    return traffic(kernel)


def _per_point(op: Op) -> int:
    return sum(_operations(o) for o in op.body.ops) if op.body is not None else 0


def _operations(op: Op) -> int:
    name = op.name.removeprefix("scalar.")
    types = [r.type for r in op.results]
    if name in FREE or not all(isinstance(t, ScalarType) and t.dtype != "bool" for t in types):
        return 0
    return 2 if name == "fma" else 1
