"""The cache lines of a tensor that ops of a kernel ask for: their places, evaluated for all threads."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.ir import Func, Op, Value
from tilewright.ir.expr import evaluate
from tilewright.ir.hardware_facts import LINE_BYTES
from tilewright.ir.types import itemsize

#: the attribute with the place that an op asks for
PLACES = {"thread.prefetch": "at", "thread.copy_async": "src"}


def all_lines(v: Value) -> set[int]:
    """The numbers of the lines of a tensor."""
    return set(range(-(-v.tensor.nbytes // LINE_BYTES)))


def lines_asked_for(func: Func, ops: Sequence[Op], name: str, v: Value) -> set[int]:
    """The lines of `v` that all threads ask for by those of `ops`, and ops inside of them, that are called
    `name`; asserts that every place is inside the tensor.
    """
    found: set[int] = set()
    for op, loops in _named(ops, name, {}):
        if op.operands[0] is v:
            found |= _lines(func, op, loops)
    return found


def _named(ops: Sequence[Op], name: str, loops: Mapping[str, int]) -> Iterator[tuple[Op, Mapping[str, int]]]:
    for op in ops:
        if op.body is not None:
            inner = {**loops, op["var"].name: op["extent"]} if op.name == "thread.loop" else loops
            yield from _named(op.body.ops, name, inner)
        elif op.name == name:
            yield op, loops


def _lines(func: Func, op: Op, loops: Mapping[str, int]) -> set[int]:
    t = op.operands[0].tensor
    x, y, z = func["grid"]
    cluster = int(np.prod(func.get("cluster", (1,))))
    extents = {**loops, "tid": func["block"], "bid.x": x, "bid.y": y, "bid.z": z}
    places = np.indices(tuple(extents.values())).reshape(len(extents), -1)
    env = dict(zip(extents, places, strict=True))
    env["rank"] = env["bid.x"] % cluster
    inside = np.ones(env["tid"].shape, bool)
    for e, low, high in op["mask"]:
        inside &= (evaluate(e, env) >= evaluate(low, env)) & (evaluate(e, env) < evaluate(high, env))
    at = [np.broadcast_to(evaluate(e, env), inside.shape)[inside] for e in op[PLACES[op.name]]]
    assert all((i >= 0).all() and (i < n).all() for i, n in zip(at, t.shape, strict=True))
    flat = np.ravel_multi_index(at, t.shape) * itemsize(t.dtype)
    return set((flat // LINE_BYTES).tolist())
