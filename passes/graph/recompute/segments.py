"""Values at which a forward pass can be cut into segments: few bytes are alive there."""

from __future__ import annotations

from tilewright.ir import Func, Value
from tilewright.passes.graph.recompute.boundary import Boundary
from tilewright.passes.rewriting.values import readers


def segment_inputs(func: Func, boundary: Boundary, count: int) -> frozenset[Value]:
    """What later segments read of earlier ones where the forward pass is cut into `count` segments.

    Segments make about equally many bytes; of the places near such a cut the one is taken where the fewest
    bytes are alive (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4).
    """
    alive = _alive_behind(func, boundary)
    made, total = [], 0
    for op in boundary.ops:
        total += sum(r.tensor.nbytes for r in op.results)
        made.append(total)
    kept: set[Value] = set()
    for j in range(1, count):
        low, high = (total * (2 * j - 1) / (2 * count), total * (2 * j + 1) / (2 * count))
        near = [i for i, n in enumerate(made[:-1]) if low <= n <= high]
        if near:
            kept |= alive[min(near, key=lambda i: sum(v.tensor.nbytes for v in alive[i]))]
    return frozenset(kept)


def _alive_behind(func: Func, boundary: Boundary) -> list[frozenset[Value]]:
    """Per forward op the values that ops of the forward pass behind it read of those up to it."""
    place = {op: i for i, op in enumerate(boundary.ops)}
    last: dict[Value, int] = {}
    for v, ops in readers(func.body).items():
        if v in boundary.makes:
            last[v] = max((place[op] for op in ops if op in place), default=-1)
    out: list[frozenset[Value]] = []
    alive: set[Value] = set()
    for i, op in enumerate(boundary.ops):
        alive |= {r for r in op.results if last.get(r, -1) > i}
        alive -= {v for v in op.operands if last.get(v) == i}
        out.append(frozenset(alive))
    return out
