"""Small instances of every graph op with operands of floats, as the fuzzer draws them."""

from dataclasses import dataclass

import numpy as np

from tests.samples.graph_op_agreement import module_of
from tilewright.ir import Module, Op
from tilewright.ir.types import FLOATS, dtype_name
from tilewright.tools.fuzz.generate import DRAWERS, draw
from tilewright.tools.fuzz.program import RandomGraph


class SmallGraph(RandomGraph):
    """A random graph of few elements, all of whose floats are float32."""

    def dtype(self, kinds="float"):
        return "f32"

    def shape(self, rank=None, most=12):
        return super().shape(rank, min(most, 4)) if rank else ()

    def fresh(self, shape, dtype, low=-2.0, high=2.0):
        return super().fresh([min(n, 9) if n in (16, 33, 64, 130) else n for n in shape], dtype, low, high)


@dataclass(frozen=True)
class Instance:
    """One op with the arrays of its operands."""

    name: str
    op: Op
    arrays: tuple[np.ndarray, ...]

    @property
    def inputs(self) -> list[str]:
        """Names of the operands of floats."""
        return [f"x{i}" for i, a in enumerate(self.arrays) if dtype_name(a.dtype) in FLOATS]

    @property
    def gives_floats(self) -> bool:
        """Whether a result holds floats."""
        return any(r.tensor.dtype in FLOATS for r in self.op.results)

    def module(self) -> Module:
        """The op alone; operand i is the input `x{i}`."""
        return module_of(self.name, self.arrays, **self.op.attributes)


def instances(drawer, count, seed=0):
    """The first `count` instances of a drawer's op that read and give floats, or that it draws at all."""
    chosen, others = [], []
    for s in range(seed, seed + 30 * count):
        p = SmallGraph(s)
        if not draw(p, drawer):
            continue
        op = p.builder.ops[-1]
        arrays = {e.value: e.native for e in p.entries}
        instance = Instance(op.name.removeprefix("graph."), op, tuple(arrays[v] for v in op.operands))
        if len(chosen) < count and instance.inputs and instance.gives_floats:
            chosen.append(instance)
        others.append(instance)
        if len(chosen) == count:
            return chosen
    return chosen or others[:count]


def drawers():
    """Names of all drawers."""
    return sorted(DRAWERS)
