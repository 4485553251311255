"""Seconds of a kernel without parameters: what any parameters take, and what its fusion costs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from tilewright.costmodel import Hardware
from tilewright.ir import Block, Func, Op, Value
from tilewright.passes.analysis.second_results import second_results_s
from tilewright.passes.kernels.registry import least_s

#: ops whose arithmetic goes on while their operands are fetched, but not while an epilogue reads and stores
_PRODUCTS = frozenset({"tensor.contract", "tensor.window"})


def outlined_s(kernel: Func, hardware: Hardware, bytes_per_s: float | None = None) -> float:
    """See `Estimator.outlined_s`.

    Traffic and arithmetic overlap; of what ops behind a product read and store beside it, the share that was
    measured does not (`fusion.exposed_share`), and large second results take longer than their traffic.
    """
    least = least_s(kernel, hardware)
    boundary_s = hardware.stream.boundary_s
    if bytes_per_s is None:
        return least + boundary_s
    results = kernel.body.ops[-1].operands
    product = next((op for op in kernel.body.ops if op.name in _PRODUCTS), None)
    whole_s = _nbytes({*kernel.params, *results}) / bytes_per_s
    if product is None:
        return max(least, whole_s) + boundary_s
    core_s = _core_bytes(kernel, product) / bytes_per_s
    beside_s = hardware.fusion.exposed_share * max(0.0, whole_s - core_s)
    return (
        max(least, whole_s, max(least, core_s) + beside_s + second_results_s(results[1:], hardware))
        + boundary_s
    )


def structure_of(kernel: Func) -> Hashable:
    """Equal for kernels that compute the same on arrays of the same types, whatever their names."""
    return _block_structure(kernel.body, {})


def _block_structure(block: Block, outer: Mapping[Value, int]) -> Hashable:
    names = dict(outer)
    for p in block.params:
        names[p] = len(names)
    out: list[Hashable] = [tuple(p.type for p in block.params)]
    for op in block.ops:
        wires = tuple(names.setdefault(v, len(names)) for v in (*op.operands, *op.results))
        body = None if op.body is None else _block_structure(op.body, names)
        out.append((op.name, op.attrs, wires, tuple(r.type for r in op.results), body))
    return tuple(out)


def _core_bytes(kernel: Func, product: Op) -> int:
    """Bytes of what a product and the ops before it read, and of one result."""
    made = {r: op for op in kernel.body.ops for r in op.results}
    read: set[Value] = set()
    line = [product]
    while line:
        op = line.pop()
        for v in op.operands:
            if v in made:
                line.append(made[v])
            else:
                read.add(v)
    return _nbytes(read) + product.results[0].tensor.nbytes


def _nbytes(values: Collection[Value]) -> int:
    return sum(v.tensor.nbytes for v in values)
