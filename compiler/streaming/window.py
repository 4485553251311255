"""Where the values between steps lie in device memory: one window per micro-batch, bytes shared over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import Value
from tilewright.runtime.arena.placement import plan_arena
from tilewright.streaming.step_modules import Step


@dataclass(frozen=True)
class Window:
    """Byte offsets of values in a block of `nbytes`."""

    offsets: Mapping[Value, int]
    nbytes: int


def window_of(steps: Sequence[Step]) -> Window:
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
    return Window({v: layout.offsets[name] for v, name in names.items()}, layout.arena_bytes)
