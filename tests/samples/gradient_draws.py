"""Small instances of every graph op with operands of floats, as the fuzzer draws them."""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from tests.samples.graph_op_agreement import module_of
from tilewright.ir import Builder, Func, Level, Module, Op, TensorType, Value, interpret
from tilewright.ir.facts import Gradient
from tilewright.ir.nodes import Pairs
from tilewright.ir.opdef import facts_of
from tilewright.ir.types import FLOATS, dtype_name
from tilewright.tools.fuzz.generate import DRAWERS, draw
from tilewright.tools.fuzz.program import RandomGraph

DIFFERENTIABLE = (Gradient.RULE, Gradient.DERIVED)
#: op -> operands of floats by which it has no gradient
REFUSED_OPERANDS = {"crop_and_resize": {1}, "roi_align": {1}, "roi_pool": {1}}


class SmallGraph(RandomGraph):
    """A random graph of few elements, whose floats are float32 where the drawer leaves it open."""

    def dtype(self, kinds="float"):
        return "f32"

    def shape(self, rank=None, most=12):
        dims = super().shape(rank, min(most, 4))
        return tuple(9 if n > 12 else n for n in dims)


@dataclass(frozen=True)
class Instance:
    """One op with the arrays of its operands; operand i is the input `x{i}` of its module."""

    op: Op
    arrays: tuple[np.ndarray, ...]

    @property
    def name(self):
        """Without the level."""
        return self.op.name.removeprefix("graph.")

    @property
    def inputs(self):
        """Names of the operands of floats."""
        return [f"x{i}" for i, a in enumerate(self.arrays) if dtype_name(a.dtype) in FLOATS]

    @property
    def gives_floats(self):
        """Whether a result holds floats."""
        return any(r.tensor.dtype in FLOATS for r in self.op.results)

    @cached_property
    def floats(self):
        """Positions of the operands of floats that its results follow and that it has a gradient by."""
        refused = REFUSED_OPERANDS.get(self.name, set())
        kinds = [dtype_name(a.dtype) for a in self.arrays]
        return [i for i, k in enumerate(kinds) if k in FLOATS and i not in refused and self._follows(i)]

    def _follows(self, operand):
        """Whether other numbers for an operand give other results: a norm without scale reads none."""
        moved = [a.astype(np.float64) if dtype_name(a.dtype) in FLOATS else a for a in self.arrays]
        before = interpret(self.module(), *moved, precision="fp64")
        factors = np.random.default_rng(0).uniform(0.99, 1.01, moved[operand].shape)
        moved[operand] = moved[operand] * factors
        after = interpret(self.module(), *moved, precision="fp64")
        return not all(map(np.array_equal, before, after))

    @property
    def differentiable(self):
        """Whether floats come from floats."""
        return self.gives_floats and bool(self.floats) and facts_of(self.op.name).gradient in DIFFERENTIABLE

    def module(self):
        """The op alone."""
        return module_of(self.name, self.arrays, **self.op.attributes)

    def adjoint(self):
        """Its derived adjoint as a module: the operands, then a cotangent `c{i}` per result of floats."""
        params = [Value(TensorType(dtype_name(a.dtype), a.shape), f"x{i}") for i, a in enumerate(self.arrays)]
        given = tuple(i for i, r in enumerate(self.op.results) if r.tensor.dtype in FLOATS)
        params += [Value(self.op.results[i].type, f"c{k}") for k, i in enumerate(given)]
        b = Builder("test:op")
        attrs = {
            "of": self.op.name, "attrs": Pairs(self.op.attrs), "wrt": tuple(self.floats), "given": given
        }  # fmt: skip
        results = b.emit("graph.adjoint", params, attrs)
        b.emit("graph.return", results)
        return Module("m", (Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results)),))


def drawers():
    """Names of all drawers, in order."""
    return sorted(DRAWERS)


@cache
def instances(drawer, count=2, seed=0):
    """The first `count` instances that can be differentiated; where there is none, the first ones."""
    chosen, others = [], []
    for s in range(seed, seed + 20 * count):
        p = SmallGraph(s)
        if not draw(p, drawer):
            continue
        op = p.builder.ops[-1]
        arrays = {e.value: e.native for e in p.entries}
        instance = Instance(op, tuple(arrays[v] for v in op.operands))
        (chosen if instance.differentiable else others).append(instance)
        if len(chosen) == count:
            break
    return tuple(chosen or others[:count])


def every_instance(count=1, seed=0):
    """Instances of all drawers that can be differentiated."""
    drawn = (i for name in drawers() for i in instances(name, count, seed))
    return [i for i in drawn if i.differentiable]


def together(several):
    """A module of these instances side by side, and the arrays and names of its inputs of floats."""
    b, params, arrays, results, names = Builder("test:op"), [], [], [], []
    for instance in several:
        types = [TensorType(dtype_name(a.dtype), a.shape) for a in instance.arrays]
        names += [f"x{len(params) + i}" for i in instance.floats]
        own = [Value(t, f"x{len(params) + i}") for i, t in enumerate(types)]
        results += b.emit(instance.op.name, own, dict(instance.op.attrs))
        params += own
        arrays += instance.arrays
    b.emit("graph.return", results)
    func = Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results))
    return Module("m", (func,)), arrays, names
