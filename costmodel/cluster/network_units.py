"""A network as a list of units, the layers that a pipeline may be cut between, from its graph function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.costmodel.op_work import is_contraction, is_moving, op_flops
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Level, Op, Value


@dataclass(frozen=True)
class Unit:
    """One contraction with parameters and the ops that follow it, per sample.

    parameters: floating elements of the constants it is the first to use. flops: forward. inside: elements
    that its computing ops produce. crossing: elements alive when it starts, which a cut in front of it would
    send (for the first unit, the network's inputs). channels, reduced: output channels and result elements of
    its contraction with parameters; 0 where there is none to divide.
    """

    name: str
    parameters: int
    flops: float
    inside: float
    crossing: float
    channels: int
    reduced: float


@dataclass(frozen=True)
class _Flow:
    """Who makes and last uses every activation, by position in the program."""

    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    constants: dict[Value, frozenset[Value]]
    last_use: dict[Value, int]


def network_units(
    func: Func, inputs: Sequence[str] | None = None, samples: int | None = None
) -> tuple[Unit, ...]:
    """Units of a graph-level function in program order.

    inputs: names of the parameters that carry samples; all others count as parameters of the network, as its
    constants do. None: all carry samples. samples: how many one execution computes; None takes the first
    extent of the first input. Raises InputError where names are unknown or there is nothing to compute.
    """
    flow = _flow(func, _sample_inputs(func, inputs))
    count = samples if samples is not None else _first_extent(func, flow)
    if count < 1:
        raise InputError(f"expected at least one sample per execution, got {count}", where=f"@{func.name}")
    groups = _groups(flow)
    if not groups:
        raise InputError("expected a network that computes something", where=f"@{func.name}")
    counted: set[Value] = set()
    units, start = [], 0
    for number, ops in enumerate(groups):
        crossing = _alive(flow, start)
        units.append(_unit(number, ops, flow, crossing / count, count, counted))
        start += len(ops)
    return tuple(units)


def unit_ops(func: Func, inputs: Sequence[str] | None = None) -> tuple[tuple[Op, ...], ...]:
    """The ops of every unit of `network_units`, the return last; errors as there."""
    return tuple(map(tuple, _groups(_flow(func, _sample_inputs(func, inputs)))))


def _sample_inputs(func: Func, names: Sequence[str] | None) -> tuple[Value, ...]:
    if func.level is not Level.GRAPH:
        raise InputError(f"expected a graph-level function, got one of level {func.level.value}")
    if names is None:
        return func.params
    known = {value.hint or str(i): value for i, value in enumerate(func.params)}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InputError(f"expected inputs among {', '.join(known)}, got {unknown or 'none'}")
    return tuple(known[name] for name in names)


def _first_extent(func: Func, flow: _Flow) -> int:
    shape = flow.inputs[0].tensor.shape if flow.inputs else ()
    if not shape:
        raise InputError("expected the number of samples, as no input has dimensions", where=f"@{func.name}")
    return shape[0]


def _flow(func: Func, inputs: tuple[Value, ...]) -> _Flow:
    """Splits the program into constant parts (nothing depends on a sample) and the ops that compute."""
    constants = {value: frozenset([value]) for value in func.params if value not in inputs}
    ops: list[Op] = []
    last_use: dict[Value, int] = {}
    for op in func.body.ops:
        if all(v in constants for v in op.operands) and op.name != "graph.return":
            whole = frozenset().union(*(constants[v] for v in op.operands)) or frozenset(op.results)
            constants.update(dict.fromkeys(op.results, whole))
            continue
        last_use.update({v: len(ops) for v in op.operands if v not in constants})
        ops.append(op)
    return _Flow(tuple(ops), inputs, constants, last_use)


def _groups(flow: _Flow) -> list[list[Op]]:
    """A unit starts at every contraction with parameters; what comes before the first one joins it."""
    groups: list[list[Op]] = []
    for op in flow.ops:
        starts = is_contraction(op) and any(v in flow.constants for v in op.operands)
        begun = groups and any(is_contraction(o) for o in groups[-1])
        if not groups or (starts and begun):
            groups.append([])
        groups[-1].append(op)
    return groups if any(op.name != "graph.return" for op in flow.ops) else []


def _alive(flow: _Flow, position: int) -> float:
    """Elements made before `position` (inputs included) and used from it on."""
    made = [*flow.inputs, *(v for op in flow.ops[:position] for v in op.results)]
    return float(sum(v.tensor.size for v in made if flow.last_use.get(v, -1) >= position))


def _unit(
    number: int, ops: list[Op], flow: _Flow, crossing: float, samples: int, counted: set[Value]
) -> Unit:
    used = {c for op in ops for v in op.operands for c in flow.constants.get(v, ())} - counted
    counted |= used
    parameters = sum(v.tensor.size for v in used if v.tensor.dtype.startswith(("f", "bf")))
    inside = sum(v.tensor.size for op in ops if not is_moving(op) for v in op.results)
    anchor = next((op for op in ops if is_contraction(op)), ops[0])
    channels = _channels(anchor, flow)
    return Unit(
        name=f"{number}:{anchor.name.removeprefix('graph.')}",
        parameters=parameters,
        flops=sum(op_flops(op) for op in ops) / samples,
        inside=inside / samples,
        crossing=crossing,
        channels=channels,
        reduced=anchor.result.tensor.size / samples if channels else 0.0,
    )


def _channels(op: Op, flow: _Flow) -> int:
    """Output channels of a contraction with parameters; 0 where there is nothing to divide."""
    if not is_contraction(op) or not any(v in flow.constants for v in op.operands):
        return 0
    shape = op.result.tensor.shape
    layout = op.get("data_layout")
    return shape[layout.index("C")] if isinstance(layout, str) else shape[-1]
