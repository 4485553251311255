"""A network derived from its graph as a model of the cluster search: units in even pipeline stages.

Units are the layers that a pipeline may be cut between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.costmodel.cluster.inputs.model import StageLoad
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


def network_model(
    func: Func, name: str = "", inputs: Sequence[str] | None = None, samples: int | None = None
) -> NetworkModel:
    """The model of a graph-level function; arguments and errors as of `network_units`."""
    return NetworkModel(name or func.name, network_units(func, inputs, samples))


@dataclass(frozen=True)
class NetworkModel:
    """Units in a row, cut into stages of the smallest greatest FLOP.

    A stage's load is the worst of each quantity over all stages. Under weight partition every unit with
    parameters all-reduces what it passes on; activations are not divided.
    """

    name: str
    units: tuple[Unit, ...]

    @property
    def layers(self) -> int:
        """Number of units."""
        return len(self.units)

    @property
    def uniform(self) -> bool:
        """False: any number of stages up to that of units is cut as evenly as the units allow."""
        return False

    def splits(self, tp: int) -> bool:
        """Output channels of every unit with parameters are divided evenly."""
        return all(unit.channels % tp == 0 for unit in self.units)

    def cuts(self, p: int) -> tuple[int, ...]:
        """First unit of each of `p` stages, and the number of units: p + 1 positions.

        Raises InputError unless 1 <= p <= layers.
        """
        if not 1 <= p <= self.layers:
            raise InputError(f"expected 1 to {self.layers} stages of {self.name}, got {p}")
        positions, end = [self.layers], self.layers
        for stages in range(p, 0, -1):
            end = int(self._last_start[stages - 1, end])
            positions.append(end)
        return tuple(positions[::-1])

    def stage(self, p: int) -> StageLoad:
        """The worst of each quantity over the stages of `cuts`."""
        cuts = self.cuts(p)
        stages = [self.units[start:end] for start, end in pairwise(cuts)]
        return StageLoad(
            flops=max(sum(u.flops for u in stage) for stage in stages),
            head_flops=0.0,
            parameters=max(float(sum(u.parameters for u in stage)) for stage in stages),
            unit_parameters=max(float(u.parameters) for u in self.units),
            units=float(max(len(stage) for stage in stages)),
            boundary=max(sum(u.crossing for u in stage) for stage in stages),
            largest_boundary=max(u.crossing for u in self.units),
            inside_sharded=0.0,
            inside_replicated=max(sum(u.inside for u in stage) for stage in stages),
            unit_inside_sharded=0.0,
            unit_inside_replicated=max(u.inside for u in self.units),
            reduced=max(sum(u.reduced for u in stage) for stage in stages),
            reductions=float(max(sum(u.channels > 0 for u in stage) for stage in stages)),
            edge=max((self.units[cut].crossing for cut in cuts[1:-1]), default=0.0),
            head=0.0,
        )

    @cached_property
    def _last_start(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """[stages - 1, end]: where the last of `stages` stages of the first `end` units starts at best.

        Exact: best(stages, end) = min over start of max(best(stages - 1, start), FLOP of start..end).
        """
        n = self.layers
        total = np.concatenate([[0.0], np.cumsum([u.flops for u in self.units])])
        best = total.copy()
        starts = np.zeros((n, n + 1), np.int64)
        for stages in range(2, n + 1):
            longest = np.full(n + 1, np.inf)
            for end in range(stages, n + 1):
                candidates = np.maximum(best[stages - 1 : end], total[end] - total[stages - 1 : end])
                place = int(np.argmin(candidates))
                starts[stages - 1, end] = stages - 1 + place
                longest[end] = candidates[place]
            best = longest
        return starts
