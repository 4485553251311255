"""Pass set-input-shapes: a graph-level module derived again for other shapes of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.errors import InputError, UnsupportedError, expect
from tilewright.ir.extents import Dim, Dims, dims_of, inherited, regrouped
from tilewright.ir.nodes import Func, Level, Module, Op, Value
from tilewright.ir.opdef import facts_of, op_def
from tilewright.ir.types import TensorType
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.names import did_you_mean
from tilewright.passes.rewriting.values import replace_in_op


@register_pass(Level.GRAPH, establishes={"shapes-known"})
def set_input_shapes(module: Module, ctx: PassContext, *, shapes: str = "") -> Module:
    """Give inputs other shapes; attributes that hold extents of operands follow.

    shapes: `data=64,3,224,224; mask=64,1`; inputs that are not named keep theirs.
    rewrite: %y = graph.reshape(%x, newshape = [1, 12]) : f32[1, 12]   where %x : f32[1, 3, 4]
        -->  %y = graph.reshape(%x, newshape = [8, 12]) : f32[8, 12]   where %x : f32[8, 3, 4]
    """
    return with_input_shapes(module, dict(map(_named_shape, filter(str.strip, shapes.split(";")))))


def _named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, extents = text.rpartition("=")
    try:
        return name.strip(), tuple(int(n) for n in extents.split(",")) if extents.strip() else ()
    except ValueError:
        raise InputError(
            f"option 'shapes' expects NAME=N,N,... with integers, got '{text.strip()}'"
        ) from None


def with_input_shapes(module: Module, shapes: Mapping[str, Sequence[int]]) -> Module:
    """The module for inputs of other shapes, by input name; inputs that are not named keep theirs.

    Ranks stay. Types are inferred again; attributes that hold old extents (reshape, broadcast_to, slices,
    splits, resizes) follow, and a constant that is joined with a larger batch is repeated along it. A batch
    is the first dimension of an input.
    Raises InputError for unknown names, other ranks, and ops that do not take the new extents, and
    UnsupportedError where the old extents leave more than one answer. The same module when nothing changes.
    """
    main = expect(module, Module, "a Module").main
    expect(shapes, Mapping, "shapes by input name")
    if main.level is not Level.GRAPH:
        raise InputError(
            f"expected a graph-level module, whose shapes can change, got one of level {main.level.value}",
            where=f"@{module.name}",
        )
    if module.state_names:
        raise InputError(
            "expected a network without state: a step holds numbers that follow from its shapes; change "
            "those of the network it is made of",
            where=f"@{module.name}",
        )
    new_shapes = _checked(module, shapes)
    if all(p.tensor.shape == shape for p, shape in zip(main.params, new_shapes, strict=True)):
        return module
    func = _Derivation(main, new_shapes).run()
    return module.with_funcs(tuple(func if f is main else f for f in module.funcs))


def _checked(module: Module, shapes: Mapping[str, Sequence[int]]) -> list[tuple[int, ...]]:
    """The new shape of every input."""
    names = module.input_names
    for name in shapes:
        if name not in names:
            known = ", ".join(names)
            raise InputError(f"unknown input '{name}'{did_you_mean(name, names)}; the inputs are {known}")
    out = []
    for name, p in zip(names, module.main.params, strict=True):
        shape = tuple(expect(shapes.get(name, p.tensor.shape), Iterable, f"the extents of input '{name}'"))
        if any(isinstance(n, bool) or not hasattr(n, "__index__") or n < 1 for n in shape):
            raise InputError(f"expected positive integers as the shape of input '{name}', got {shape}")
        if len(shape) != p.tensor.rank:
            raise InputError(f"expected {p.tensor.rank} dimensions of input '{name}', got {shape}")
        out.append(tuple(int(n) for n in shape))
    return out


class _Derivation:
    """One walk over the ops of a function: new values, and the dimensions of every old value."""

    def __init__(self, func: Func, shapes: Sequence[tuple[int, ...]]) -> None:
        self.func = func
        self.new: dict[Value, Value] = {}
        self.dims: dict[Value, Dims] = {}
        self.varying: set[Value] = set()  # what depends on an input
        self.sources: dict[Value, Value] = {}  # of constant values that broadcast_to repeats
        self.spreads = 0  # repetitions built, which may leave others without a use
        self.ops: list[Op] = []
        self.params: list[Value] = []
        for p, shape in zip(func.params, shapes, strict=True):
            old = p.tensor
            self.params.append(p if old.shape == shape else Value(replace(old, shape=shape), p.hint))
            self.new[p] = self.params[-1]
            self.dims[p] = tuple(
                Dim.of(a, b, outer=d == 0) for d, (a, b) in enumerate(zip(old.shape, shape, strict=True))
            )
            self.varying.add(p)

    def run(self) -> Func:
        """The function for the new shapes."""
        for op in self.func.body.ops:
            try:
                self.derive(op)
            except UnsupportedError as e:
                raise UnsupportedError(self.sentence(op, e), where=_place(op)) from None
            except InputError as e:
                raise InputError(self.sentence(op, e), where=_place(op)) from None
        body = replace(self.func.body, params=tuple(self.params), ops=tuple(self.ops))
        if self.spreads:
            body = body.with_ops(live_ops(body))
        types = tuple(v.type for v in self.ops[-1].operands)
        return replace(self.func, body=body, result_types=types)

    def sentence(self, op: Op, error: InputError) -> str:
        """Describe a fault at an op, with the old and new shapes of its operands."""
        pairs = [
            f"{v.type} -> {[d.new for d in self.dims[v]]}"
            if any(d.changed for d in self.dims[v])
            else str(v.type)
            for v in op.operands
        ]
        return f"cannot follow the new input shapes; operands ({', '.join(pairs)}): {error}"

    def derive(self, op: Op) -> None:
        """Append `op` for the new shapes and note what its results became."""
        operands = [self.dims[v] for v in op.operands]
        if any(v in self.varying for v in op.operands):
            self.varying.update(op.results)
        if not any(d.changed for dims in operands for d in dims):
            self.keep(op)
            return
        definition = op_def(op.name)
        if op.body is not None or definition.infer is None:
            raise UnsupportedError("an op with a body keeps its shapes")
        attrs = dict(op.attrs)
        attrs |= facts_of(op.name).extents(operands, attrs)
        values = self.repeated(op) if op.name in _JOINS else [self.new[v] for v in op.operands]
        types = definition.infer([v.type for v in values], attrs)
        results = []
        for r, t in zip(op.results, types, strict=True):
            assert isinstance(t, TensorType)
            if t.rank != r.tensor.rank:
                raise UnsupportedError(f"the result {r.type} would have another rank: {t}")
            results.append(r if t == r.type else Value(t, r.hint))
            self.note(r, results[-1], _result_dims(op, operands, r.tensor.shape, t.shape))
        self.ops.append(
            replace(op, operands=tuple(values), attrs=tuple(attrs.items()), results=tuple(results))
        )

    def keep(self, op: Op) -> None:
        """Append an op none of whose operands changes its shape."""
        self.ops.append(replace_in_op(op, {v: n for v in op.operands if (n := self.new[v]) is not v}))
        for r in op.results:
            self.note(r, r, dims_of(r.tensor.shape, r.tensor.shape))
        if op.name == "graph.broadcast_to" and op.operands[0] not in self.varying:
            self.sources[op.result] = self.sources.get(op.operands[0], op.operands[0])

    def note(self, old: Value, new: Value, dims: Dims) -> None:
        """Remember what became of a value."""
        self.new[old] = new
        self.dims[old] = dims

    def repeated(self, op: Op) -> list[Value]:
        """Operands of a joining op; what no input reaches is repeated where the others have a new extent."""
        joined = op.integer("axis") % op.operands[0].tensor.rank if op.name == "graph.concatenate" else None
        following = [self.dims[v] for v in op.operands if v in self.varying]
        out = []
        for v in op.operands:
            old = v.tensor.shape
            shape = list(old)
            for d, extent in enumerate(old):
                extents = {dims[d].new for dims in following if dims[d].old == extent}
                if d != joined and v not in self.varying and len(extents) == 1:
                    shape[d] = extents.pop()
            out.append(self.new[v] if tuple(shape) == old else self.spread(v, tuple(shape), op.loc))
        return out

    def spread(self, value: Value, shape: tuple[int, ...], loc: str) -> Value:
        """A constant value repeated to `shape`; one that is itself repeated, from its source."""
        self.spreads += 1
        value = self.sources.get(value, value)
        if value.tensor.shape == shape:
            return self.new[value]
        definition = op_def("graph.broadcast_to")
        attrs = definition.complete({"shape": shape})
        assert definition.infer is not None
        (t,) = definition.infer([value.type], dict(attrs))
        result = Value(t)
        self.ops.append(Op(definition.name, (self.new[value],), attrs, (result,), loc=loc))
        return result


_JOINS = frozenset({"graph.concatenate", "graph.stack"})


def _result_dims(op: Op, operands: Sequence[Dims], old: Sequence[int], new: Sequence[int]) -> Dims:
    """The dimensions of a result: exact for ops that only rearrange dimensions."""
    if op.name in ("graph.reshape", "graph.batch_flatten"):
        return regrouped(operands[0], old)
    if op.name == "graph.transpose":
        axes = op["axes"]
        assert isinstance(axes, tuple)
        return tuple(operands[0][d] for d in axes if isinstance(d, int))
    return inherited(operands, old, new)


def _place(op: Op) -> str:
    return f"{op.name} [{op.loc}]" if op.loc else op.name
