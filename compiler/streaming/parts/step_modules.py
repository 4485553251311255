"""Steps as modules with the same names everywhere, and where the values between them lie in device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import Block, Constants, Func, Level, Module, Op, Value
from tilewright.ir.modules.compare import equal
from tilewright.runtime.arena.placement import plan_arena
from tilewright.streaming.parts.copied_ops import copied_ops
from tilewright.streaming.parts.line import Line


@dataclass(frozen=True)
class NetworkStep:
    """Ops begin..end of a line: `inputs` and `outputs` are values of the line.

    module: its @main has them as parameters x0, x1, ... and results; it has no data. constants: the line's
    names of the module's constants c0, c1, ...
    """

    line: Line
    begin: int
    end: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    module: Module
    constants: tuple[str, ...]

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants as the network has them."""
        ops = (op for op in self.module.main.body.ops if op.name == "graph.constant")
        return sum(op.result.tensor.nbytes for op in ops)

    def with_data(self) -> Module:
        """The module with its constants, which are made here and live as long as somebody holds them."""
        arrays = {f"c{i}": self.line.constant(name) for i, name in enumerate(self.constants)}
        return self.module.with_constants(Constants(arrays))


def steps_of(line: Line, cuts: Sequence[tuple[int, int]]) -> list[NetworkStep]:
    """One step per range of ops."""
    return [_step(line, begin, end) for begin, end in cuts]


def _step(line: Line, begin: int, end: int) -> NetworkStep:
    inputs, outputs = line.crossing(begin, end)
    renamed = {v: Value(v.type, f"x{i}") for i, v in enumerate(inputs)}
    params = tuple(renamed.values())
    ops = line.ops[begin:end]
    used = dict.fromkeys(v for op in ops for v in op.operands if v in line.fixed)
    body, names = copied_ops((*line.fixed_ops(list(used)), *ops), renamed)
    body.append(Op("graph.return", tuple(renamed[v] for v in outputs)))
    types = tuple(v.type for v in outputs)
    main = Func(Level.GRAPH, "main", Block(params, tuple(body)), types)
    return NetworkStep(line, begin, end, inputs, outputs, Module("step", (main,)), tuple(names))


def share_templates(steps: Sequence[NetworkStep]) -> list[int]:
    """Per step the number of the first one that it equals but for the constants' data."""
    firsts: list[int] = []
    shared: list[int] = []
    for number, step in enumerate(steps):
        like = (f for f in firsts if equal(steps[f].module, step.module, constants=False))
        first = next(like, number)
        if first == number:
            firsts.append(number)
        shared.append(first)
    return shared


@dataclass(frozen=True)
class ValueWindow:
    """Byte offsets of values in a block of `nbytes`."""

    offsets: Mapping[Value, int]
    nbytes: int


def window_of(steps: Sequence[NetworkStep]) -> ValueWindow:
    """The least memory for the values that cross cuts, inputs and results of the network included.

    Inputs are there before the first step, results stay to the end.
    """
    line = steps[0].line
    crossing = dict.fromkeys((*line.parameters, *(v for s in steps for v in (*s.inputs, *s.outputs))))
    names = {v: f"v{i}" for i, v in enumerate(crossing)}
    touches = [[names[v] for v in line.parameters]]
    touches += [[names[v] for v in (*s.inputs, *s.outputs)] for s in steps]
    after = [[i - 1] if i else [] for i in range(len(touches))]
    sizes = {name: max(1, v.tensor.nbytes) for v, name in names.items()}
    layout = plan_arena(sizes, touches, after, [names[v] for v in dict.fromkeys(line.returned)])
    return ValueWindow({v: layout.offsets[name] for v, name in names.items()}, layout.arena_bytes)
