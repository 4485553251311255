"""ONNX control flow: If, Loop and Scan are unrolled; conditions on data choose between values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Poison, Rules, wrapped
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value

#: Loops longer than this are not unrolled.
MAX_TRIPS = 4096


def _if(emit: FoldingEmitter, node: Node) -> Result:
    """The branch that a constant chooses; else both are computed and one is chosen, where types agree."""
    condition = node.tensor(0)
    then, otherwise = node.graph("then_branch"), node.graph("else_branch")
    known = emit.known(condition)
    if known is not None:
        return node.run(then if known.any() else otherwise, ())
    both: list[tuple[Result, ...]] = []
    for name, branch in (("then_branch", then), ("else_branch", otherwise)):
        results = node.attempt(branch)
        if isinstance(results, str):
            # the branch may be meant for other values: what is wrong is that nobody knows which is taken
            emit.static(condition, f"the condition, whose {name} cannot be computed ({results}),")
            raise UnsupportedError(results)
        both.append(results)
    if len(both[0]) != len(both[1]):
        raise InputError(f"expected branches of as many results, got {len(both[0])} and {len(both[1])}")
    return tuple(_chosen(emit, condition, a, b) for a, b in zip(*both, strict=True))


def _chosen(emit: FoldingEmitter, condition: Value, a: Result, b: Result) -> Result:
    if isinstance(a, Poison) or isinstance(b, Poison):
        return a if isinstance(a, Poison) else b
    if not isinstance(a, Value) or not isinstance(b, Value) or a.type != b.type:
        # results of two types can only be told apart where the condition is known
        kinds = " and ".join(str(r.type) if isinstance(r, Value) else "no tensor" for r in (a, b))
        emit.static(condition, f"the condition, whose branches give {kinds},")
        raise InputError("expected branches that give tensors")
    return a if a is b else emit.value("where", emit.reshape(condition, ()), a, b)


def _loop(emit: FoldingEmitter, node: Node) -> Result:
    body = node.graph("body")
    trips = MAX_TRIPS + 1
    if node.has(0):
        trips = int(emit.static(node.tensor(0), "the trip count").reshape(()))
    condition: Result = node.tensor(1) if node.has(1) else emit.full(True, "bool")
    carried = list(node.inputs[2:])
    scanned: list[list[Result]] = [[] for _ in range(max(0, len(body.outputs) - 1 - len(carried)))]
    for trip in range(max(0, trips)):
        if trip >= MAX_TRIPS:
            raise UnsupportedError(
                f"expected at most {MAX_TRIPS} trips, got {trips if node.has(0) else 'more'}"
            )
        if not isinstance(condition, Value):
            raise UnsupportedError("expected a condition that can be computed")
        if not emit.static(condition, "the condition").any():
            break
        number = emit.constant(np.array(trip, np.int64))
        condition, *rest = node.run(body, (number, condition, *carried))
        carried = rest[: len(carried)]
        for results, value in zip(scanned, rest[len(carried) :], strict=True):
            results.append(value)
    return (*carried, *(_stacked(emit, results, 0) for results in scanned))


def _stacked(emit: FoldingEmitter, parts: Sequence[Result], axis: int) -> Result:
    """One entry per trip along a new axis."""
    if poison := next((p for p in parts if isinstance(p, Poison)), None):
        return poison
    values = [p for p in parts if isinstance(p, Value)]
    if not values or len(values) < len(parts):
        raise UnsupportedError(
            "expected a loop that runs and gives tensors: the results have no type otherwise"
        )
    if any(v.type != values[0].type for v in values):
        raise UnsupportedError("expected results of one shape from every trip")
    at = wrapped(axis, values[0].tensor.rank + 1)
    return emit.value("stack", *values, axis=at)


def _scan(emit: FoldingEmitter, node: Node) -> Result:
    """Version 8 has a batch dimension first, and lengths of the sequences as its first operand."""
    body, count = node.graph("body"), node.integer("num_scan_inputs")
    inputs = node.inputs
    if node.opset < 9:
        if node.has(0):
            raise UnsupportedError("expected sequences of full length, got their lengths")
        return _batched_scan(emit, node, body, inputs[1:], count)
    states, sequences = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    outputs = len(body.outputs) - len(states)
    before = node.integers("scan_input_directions", (0,) * count)
    after = node.integers("scan_output_directions", (0,) * outputs)
    axes = node.integers("scan_input_axes", (0,) * count)
    out_axes = node.integers("scan_output_axes", (0,) * outputs)
    values = [v for v in sequences if isinstance(v, Value)]
    if (
        len(values) < count
        or not len(before) == len(axes) == count
        or not len(after) == len(out_axes) == outputs
    ):
        raise InputError("expected one tensor, axis and direction per scanned operand and result")
    along = [wrapped(a, v.tensor.rank) for a, v in zip(axes, values, strict=True)]
    lengths = {v.tensor.shape[a] for v, a in zip(values, along, strict=True)}
    if len(lengths) != 1 or (trips := lengths.pop()) > MAX_TRIPS:
        raise UnsupportedError(f"expected sequences of one length of at most {MAX_TRIPS}")
    states, scanned = _scanned(emit, node, body, states, values, along, before, trips)
    ordered = [r[::-1] if backwards else r for r, backwards in zip(scanned, after, strict=True)]
    return (*states, *(_stacked(emit, r, a) for r, a in zip(ordered, out_axes, strict=True)))


def _scanned(
    emit: FoldingEmitter,
    node: Node,
    body: syntax.Graph,
    states: list[Result],
    sequences: Sequence[Value],
    axes: Sequence[int],
    backwards: Sequence[int],
    trips: int,
) -> tuple[list[Result], list[list[Result]]]:
    """The states after all trips of a scan, and what every trip gave to each scanned result."""
    scanned: list[list[Result]] = [[] for _ in range(len(body.outputs) - len(states))]
    for trip in range(trips):
        places = [trips - 1 - trip if back else trip for back in backwards]
        parts = [emit.entry(v, a, at) for v, a, at in zip(sequences, axes, places, strict=True)]
        results = node.run(body, (*states, *parts))
        states = list(results[: len(states)])
        for collected, value in zip(scanned, results[len(states) :], strict=True):
            collected.append(value)
    return states, scanned


def _batched_scan(
    emit: FoldingEmitter, node: Node, body: syntax.Graph, inputs: Sequence[Result], count: int
) -> Result:
    """Every sample of the batch by itself."""
    directions = node.integers("directions", (0,) * count)
    values = [v for v in inputs if isinstance(v, Value)]
    if len(values) < len(inputs) or any(v.tensor.rank < 1 for v in values):
        raise InputError("expected tensors with a batch dimension")
    samples: list[list[Result]] = []
    for sample in range(values[0].tensor.shape[0]):
        own = [emit.entry(v, 0, sample) for v in values]
        sequences = own[len(own) - count :]
        trips = sequences[0].tensor.shape[0]
        states, scanned = _scanned(
            emit, node, body, list(own[: len(own) - count]), sequences, (0,) * count, directions, trips
        )
        samples.append([*states, *(_stacked(emit, r, 0) for r in scanned)])
    return tuple(_stacked(emit, list(parts), 0) for parts in zip(*samples, strict=True))


RULES: Rules = {"If": _if, "Loop": _loop, "Scan": _scan}
