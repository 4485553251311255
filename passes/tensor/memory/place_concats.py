"""Pieces of joins get their places: kernels write them into the array that they are joined to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir import (
    Builder,
    Func,
    Level,
    Module,
    Op,
    Ref,
    Sym,
    TensorType,
    Value,
    scalar_body,
    structured,
)
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.join_ops import boxes_of, layout_in, placed
from tilewright.ir.tensor.ops import STRUCTURED, callee_of
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.rewriting.values import with_types

#: bytes whose multiples a buffer may begin at: vectors are aligned there, and OpenCL's regions
SLOT_ALIGNMENT = 128


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def place_concats(module: Module, ctx: PassContext) -> Module:
    """Let kernels write the operands of joins, and read them, where they lie in the joined array.

    rewrite:  %0 = tensor.call(%x, callee = @conv) : f32[8, 32, 56, 56]; %c = tensor.join(%0, ...)
        -->   %0 = tensor.call(%x, callee = @conv) : f32[8, 32, 56, 56] by [200704, 3136, 56, 1]; %c = ...

    Joins of joins become boxes of one array. What cannot be written in place (inputs, constants, results of
    the network, pieces of two joins, results of scans and scatters) is copied there by a kernel of its own.
    """
    if not any(op.name == "tensor.join" for op in module.main.body.ops):
        return module
    return _Placer(module).run()


@dataclass(frozen=True)
class _Place:
    """The place of a value: the array that holds it, elements before its first one, steps of its
    dimensions.
    """

    root: Value
    start: int
    steps: tuple[int, ...]

    def type_of(self, v: Value, shape: Sequence[int]) -> TensorType | None:
        """The type of what `v` holds seen in `shape`; None where no steps describe it."""
        steps = layout_in(v.tensor.shape, self.steps, tuple(shape))
        if steps is None:
            return None
        start = self.start % max(1, SLOT_ALIGNMENT // itemsize(v.tensor.dtype))
        return placed(TensorType(v.tensor.dtype, tuple(shape)), steps, start)


class _Placer:
    def __init__(self, module: Module) -> None:
        self.module, self.main = module, module.main
        self.kernels = {f.name: f for f in module.funcs if f is not module.main}
        self.producers = {r: op for op in self.main.body.ops for r in op.results}
        self.called = Counter(callee_of(op) for op in self.main.body.ops if op.name == "tensor.call")
        self.returned = set(self.main.body.ops[-1].operands)
        self.uses: dict[Value, list[tuple[Op, int]]] = {}
        for op in self.main.body.ops:
            for i, v in enumerate(op.operands):
                self.uses.setdefault(v, []).append((op, i))
        self.places: dict[Value, _Place] = {}
        self.copies: dict[
            Op, list[tuple[int, Value]]
        ] = {}  # operands of joins that are copied, and the copies

    def run(self) -> Module:
        for op in reversed(self.main.body.ops):
            if op.name == "tensor.join":
                self._place_operands(op)
        placed = not any(self.copies.values()) and all(self._typed(v) is v for v in self.places)
        return self.module if placed else self._rebuilt()

    # -- where values lie ------------------------------------------------------------------------------------
    def _place_operands(self, join: Op) -> None:
        whole = join.result
        if whole not in self.places:
            self.places[whole] = _Place(whole, 0, whole.tensor.strides)
        inside = self.places[whole]
        self.copies[join] = []
        for i, (v, (at, extents)) in enumerate(zip(join.operands, boxes_of(join), strict=True)):
            start = inside.start + sum(a * s for a, s in zip(at, inside.steps, strict=True))
            steps = layout_in(extents, inside.steps, v.tensor.shape)
            place = _Place(inside.root, start, steps) if steps is not None else None
            joined = v in self.producers and self.producers[v].name == "tensor.join"
            fits = place is not None and (not joined or v.tensor.shape == extents)
            if fits and place is not None and self._writable(v) and self._readable(v, place):
                self.places[v] = place
            else:
                copy = Value(TensorType(v.tensor.dtype, extents), v.hint)
                self.copies[join].append((i, copy))
                self.places[copy] = _Place(inside.root, start, inside.steps)

    def _writable(self, v: Value) -> bool:
        op = self.producers.get(v)
        if op is None or v in self.returned or v in self.places:
            return False
        if op.name == "tensor.join":
            return True
        if op.name != "tensor.call" or self.called[callee_of(op)] != 1:
            return False
        kernel = self._kernel(op)
        result = kernel.body.ops[-1].operands[op.results.index(v)]
        maker = next(o for o in kernel.body.ops if result in o.results)
        # A value returned twice has one place.
        once = kernel.body.ops[-1].operands.count(result) == 1
        return once and (maker.name in STRUCTURED or maker.name == "tensor.gather")

    def _readable(self, v: Value, place: _Place) -> bool:
        for op, i in self.uses.get(v, ()):
            if op.name == "tensor.join" and place.type_of(v, boxes_of(op)[i][1]) is None:
                return False  # it could not be copied from there
            if op.name == COMMUNICATE:
                return False  # messages are dense
            if op.name == "tensor.call":
                kernel = self._kernel(op)
                p = kernel.params[i]
                plain = all(o.name in STRUCTURED or o.name == "tensor.gather" for o in kernel.body.ops[:-1])
                if self.called[callee_of(op)] != 1 or not plain or place.type_of(v, p.tensor.shape) is None:
                    return False
        return True

    def _kernel(self, op: Op) -> Func:
        return self.kernels[callee_of(op)]

    # -- the module with it ----------------------------------------------------------------------------------
    def _rebuilt(self) -> Module:
        b = Builder()
        env: dict[Value, Value] = {}
        for op in self.main.body.ops:
            if op.name == "tensor.call":
                self._retype(op)
            operands = [env.get(v, v) for v in op.operands]
            for i, copy in self.copies.get(op, ()):
                operands[i] = self._copied(b, op, operands[i], copy)
            results = tuple(self._typed(r) for r in op.results)
            env.update(zip(op.results, results, strict=True))
            b.append(replace(op, operands=tuple(operands), results=results))
        main = replace(self.main, body=b.block(self.main.params))
        kernels = [self.kernels[f.name] for f in self.module.funcs if f is not self.main]
        added = [f for name, f in self.kernels.items() if all(name != k.name for k in kernels)]
        return self.module.with_funcs((*kernels, *added, main))

    def _typed(self, v: Value) -> Value:
        place = self.places.get(v)
        t = place.type_of(v, v.tensor.shape) if place is not None else v.tensor
        assert t is not None
        return v if t == v.tensor else Value(t, v.hint)

    def _retype(self, op: Op) -> None:
        """Give the parameters and results of a call's kernel the layouts of what it reads and writes."""
        kernel = self._kernel(op)
        fresh: dict[Value, Value] = {}
        for v, p in zip(
            (*op.operands, *op.results), (*kernel.params, *kernel.body.ops[-1].operands), strict=True
        ):
            t = self.places[v].type_of(v, p.tensor.shape) if v in self.places else p.tensor
            assert t is not None
            if t != p.tensor:
                fresh[p] = Value(t, p.hint)
        if fresh:
            self.kernels[kernel.name] = with_types(kernel, kernel.body.ops, fresh)

    def _copied(self, b: Builder, join: Op, source: Value, copy: Value) -> Value:
        """A call of a kernel that copies a piece to its place."""
        name = numbered("piece", self.kernels)
        target = self._typed(copy)
        shape = target.tensor.shape
        x = Value(_seen(source.tensor, shape), source.hint)
        inner, params = scalar_body([x.tensor.dtype])
        inner.do("scalar.yield", params[0])
        names = [f"i{d}" for d in range(len(shape))]
        kernel = Builder(join.loc)
        par, read, types = dict(zip(names, shape, strict=True)), tuple(map(Sym, names)), [target.type]
        made = structured(
            kernel, "tensor.map", [x], par=par, reads=[read], types=types, body=inner.block(params)
        )
        kernel.do("tensor.return", *made)
        self.kernels[name] = Func(Level.TENSOR, name, kernel.block((x,)), (target.type,))
        (result,) = b.emit(
            "tensor.call", [source], {"callee": Ref(name)}, types=types, hint=copy.hint, loc=join.loc
        )
        return result


def _seen(t: TensorType, shape: tuple[int, ...]) -> TensorType:
    """The type in another shape of as many elements, which `_readable` has found to have steps."""
    steps = layout_in(t.shape, t.strides, shape)
    assert steps is not None
    return placed(TensorType(t.dtype, shape), steps, t.start)
