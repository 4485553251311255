"""A form of a training step as parts, one per place where some of it runs, each a module with state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.ir import Block, Constants, Func, Level, Module, Op, UnsupportedError, Value
from tilewright.ir.types import array_type
from tilewright.passes.graph.distribute.pipeline.step_places import StepFlow, StepPlaces
from tilewright.runtime.dtypes import DTYPES
from tilewright.streaming.parts.copied_ops import copied_ops

#: bytes from which a value that only updates read goes to storage like state, and not over the cut
KEPT_BYTES = 4096


@dataclass(frozen=True)
class FormLine:
    """What all parts of a form share: inputs (state of the host behind those of the step) and results."""

    module: Module
    parameters: tuple[Value, ...]
    returned: tuple[Value, ...]


@dataclass(frozen=True)
class Part:
    """What runs at one place. inputs, outputs: values that cross cuts, of `line` and between parts.

    module: its @main has them as parameters x0, x1, ... and results, and `states` as state s0, s1, ...; it
    has no data. constants: the step's names of the module's constants c0, c1, ... reads: state whose old
    value counts; writes: state that it changes.
    """

    line: FormLine
    place: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    states: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    module: Module
    constants: tuple[str, ...]

    @property
    def state_parameters(self) -> tuple[Value, ...]:
        """The parameters that are state, in the order of `states`."""
        return self.module.main.params[len(self.inputs) :]

    @cached_property
    def constant_bytes(self) -> int:
        """Bytes of the constants as the step has them."""
        ops = (op for op in self.module.main.body.ops if op.name == "graph.constant")
        return sum(op.result.tensor.nbytes for op in ops)

    def with_data(self) -> Module:
        """The module with its constants; its state starts as zeros, which nobody reads."""
        own = self.line.module.constants
        arrays = {f"c{i}": own[name] for i, name in enumerate(self.constants)}
        for v in self.state_parameters:
            t = array_type(v.tensor)
            arrays[v.hint] = np.broadcast_to(np.zeros((), DTYPES[t.dtype]), t.shape)
        return self.module.with_constants(Constants(arrays))


@dataclass(frozen=True)
class FormParts:
    """All parts of a form in the order of their places.

    local: state that the form resets to zero, which therefore is none beyond it.
    kept: types of values that go to storage as state between two parts, by name.
    """

    line: FormLine
    parts: tuple[Part, ...]
    local: frozenset[str]
    kept: Mapping[str, Value]


def parts_of_form(module: Module, flow: StepFlow, places: StepPlaces) -> FormParts:
    """Cut a form whose ops are placed. module: the step, for its constants.

    Raises UnsupportedError for results of the caller that are made of state alone.
    """
    if any(v in flow.fixed or v in flow.new for v in flow.returned):
        raise UnsupportedError("expected results that depend on the inputs", where=f"@{module.name}")
    return _Cutting(module, flow, places).parts()


def resets(module: Module, flow: StepFlow) -> frozenset[Value]:
    """The state that becomes zero, whatever the run. module: for its constants."""

    def is_zero(value: Value) -> bool:
        op = flow.fixed.get(value)
        if op is None:
            return False
        if op.name == "graph.constant":
            return not np.any(module.constants[str(op["name"])])
        return op.name in ("graph.broadcast_to", "graph.reshape") and is_zero(op.operands[0])

    return frozenset(s for s, new in flow.new.items() if new is not s and is_zero(new))


class _Cutting:
    def __init__(self, module: Module, flow: StepFlow, places: StepPlaces) -> None:
        self.module, self.flow, self.places = module, flow, places
        self.line = FormLine(module, flow.inputs, flow.returned)
        self.made: dict[Value, int] = {r: places.of[op] for op in flow.ops for r in op.results}
        self.names = {s: s.hint for s in flow.states}
        self.read_at: dict[Value, set[int]] = {}  # moving values, by the places that read them
        self.ops: dict[int, list[Op]] = {}
        for op in flow.ops:
            place = places.of[op]
            self.ops.setdefault(place, []).append(op)
            for v in op.operands:
                self.read_at.setdefault(v, set()).add(place)
        self.reset = resets(module, flow)
        self.written: dict[int, list[Value]] = {}
        for s, place in places.written.items():
            if s not in self.reset:
                self.written.setdefault(place, []).append(s)
                self.read_at.setdefault(flow.new[s], set()).add(place)
        self.kept = self.kept_values()

    def kept_values(self) -> dict[Value, str]:
        """Large values that the updates behind the backward pass read, by the name they have as state."""
        updates, out = 2 * self.places.layers - 1, dict[Value, str]()
        for v, readers in self.read_at.items():
            if v in self.made and self.made[v] < updates and v.tensor.nbytes >= KEPT_BYTES:
                others = {p for p in readers if p != self.made[v]}
                if others and min(others) >= updates and v not in self.flow.returned:
                    out[v] = f"%kept.{len(out)}"
        return out

    def parts(self) -> FormParts:
        numbers = sorted({*self.ops, *self.written})
        parts = tuple(self.part(p) for p in numbers)
        local = frozenset(s.hint for s in self.reset)
        return FormParts(self.line, parts, local, {name: v for v, name in self.kept.items()})

    def part(self, place: int) -> Part:
        flow, ops = self.flow, self.ops.get(place, [])
        changed = self.written.get(place, [])
        needed = [v for op in ops for v in op.operands] + [flow.new[s] for s in changed]
        fixed = flow.fixed_ops(dict.fromkeys(v for v in needed if v in flow.fixed))
        read = flow.states_of(needed)
        here = {r for op in ops for r in op.results}
        arriving = [
            v for v in dict.fromkeys(needed) if self.made.get(v, -1 if v in flow.inputs else place) != place
        ]
        inputs = tuple(v for v in arriving if v not in self.kept)
        leaving = [v for v in here_order(ops) if self.leaves(v, place)]
        outputs = tuple(v for v in leaving if v not in self.kept)
        states = [s for s in flow.states if s in read or s in changed]
        back = [v for v in arriving if v in self.kept]  # kept values that come, as state
        out = [v for v in leaving if v in self.kept]
        renamed = {v: Value(v.type, f"x{i}") for i, v in enumerate(inputs)}
        params = list(renamed.values())
        names, pairs, new = list[str](), list[tuple[int, int]](), list[Value]()
        old: list[Value] = []
        for v in (*states, *back):
            renamed[v] = Value(v.type, f"s{len(old)}")
            old.append(renamed[v])
            names.append(self.names.get(v) or self.kept[v])
        for v in out:
            old.append(Value(v.type, f"s{len(old)}"))
            names.append(self.kept[v])
        body, constants = copied_ops((*fixed, *ops), renamed)
        new += [renamed[flow.new[s]] if s in changed else renamed[s] for s in states]
        new += [renamed[v] for v in back] + [renamed[v] for v in out]
        returned = (*(renamed[v] for v in outputs), *new)
        pairs = [(len(params) + i, len(outputs) + i) for i in range(len(old))]
        body.append(Op("graph.return", returned))
        block = Block((*params, *old), tuple(body))
        main = Func(Level.GRAPH, "main", block, tuple(v.type for v in returned)).with_attrs(
            updates=tuple(pairs)
        )
        assert here is not None
        return Part(
            self.line,
            place,
            inputs,
            outputs,
            tuple(names),
            frozenset({*(s.hint for s in read), *(self.kept[v] for v in back)}),
            frozenset({*(s.hint for s in changed), *(self.kept[v] for v in out)}),
            Module("part", (main,)),
            tuple(constants),
        )

    def leaves(self, value: Value, place: int) -> bool:
        return value in self.flow.returned or any(p != place for p in self.read_at.get(value, ()))


def here_order(ops: Sequence[Op]) -> list[Value]:
    """The results of ops in their order."""
    return [r for op in ops for r in op.results]
