"""Small random tensor programs, and every partition of one into kernels, found by trying all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilewright.ir import Block, Builder, Func, Level, Module, TensorType, Value, scalar_body, structured
from tilewright.ir.expr import Expr, Sym
from tilewright.passes.tensor.fusion.covers import waiting
from tilewright.passes.tensor.fusion.op_graph import OpGraph

SIZE = 4
SQUARE = TensorType("f32", (SIZE, SIZE))
ROW = TensorType("f32", (SIZE,))


def random_program(rng: np.random.Generator, ops: int) -> Module:
    """A function of maps, row sums and products over small squares and rows; returns what nobody reads."""
    params = [Value(SQUARE, "x"), Value(SQUARE, "y"), Value(ROW, "r")]
    b = Builder("random")
    made: list[Value] = []
    for _ in range(ops):
        near = [*made[-3:], params[int(rng.integers(3))]]
        squares = [v for v in near if v.type == SQUARE] or params[:2]
        kind = rng.choice(["map", "map", "map", "sum", "product", "view"])
        if kind == "product":
            made.append(_product(b, _pick(rng, squares), _pick(rng, params[:2] + squares)))
        elif kind == "sum":
            made.append(_row_sum(b, _pick(rng, squares)))
        elif kind == "view":
            made.append(_view(b, _pick(rng, squares)))
        else:
            made.append(_map(b, rng, [_pick(rng, near) for _ in range(int(rng.integers(1, 3)))]))
    read = {v for op in b.ops for v in op.operands}
    results = [v for v in made if v not in read]
    b.do("tensor.return", *results)
    types = tuple(v.type for v in results)
    return Module("m", (Func(Level.TENSOR, "main", Block(tuple(params), tuple(b.ops)), types),))


def crossing_program() -> Module:
    """Two pairs of maps; each pair may be one kernel, but then each would wait for the other's product."""
    rng = np.random.default_rng(0)
    params = [Value(SQUARE, "x"), Value(SQUARE, "y")]
    b = Builder("crossing")
    first, second = (_map(b, rng, [v], turned=0) for v in params)
    sums = [_product(b, v, v) for v in (second, first)]
    results = [_map(b, rng, [v, s], turned=0) for v, s in zip((first, second), sums, strict=True)]
    b.do("tensor.return", *results)
    return Module("m", (Func(Level.TENSOR, "main", Block(tuple(params), tuple(b.ops)), (SQUARE, SQUARE)),))


def _pick(rng: np.random.Generator, values: list[Value]) -> Value:
    return values[int(rng.integers(len(values)))]


def _map(b: Builder, rng: np.random.Generator, operands: list[Value], turned: float = 0.2) -> Value:
    """A map over squares (over rows if all operands are), most often of what lies at its own point."""
    shape = (SIZE,) if all(v.type == ROW for v in operands) else (SIZE, SIZE)
    names = ["i", "j"][: len(shape)]
    at: list[tuple[Expr, ...]] = []
    for v in operands:
        own = tuple(map(Sym, names[: v.tensor.rank]))
        other = tuple(reversed(own)) if len(own) == 2 else (SIZE - 1 - own[0],)
        at.append(own if rng.random() >= turned else other)
    body, values = scalar_body(["f32"] * len(operands))
    total = values[0]
    for v in values[1:]:
        total = body.value("scalar.add", total, v)
    if rng.random() < 0.2:
        total = body.value("scalar.tanh", total)
    body.do("scalar.yield", body.value("scalar.mul", total, total))
    par = dict.fromkeys(names, SIZE)
    t = TensorType("f32", shape)
    (out,) = structured(b, "tensor.map", operands, par=par, reads=at, body=body.block(values), types=[t])
    return out


def _view(b: Builder, v: Value) -> Value:
    body, values = scalar_body(["f32"])
    body.do("scalar.yield", values[0])
    at = (Sym("i") // SIZE, Sym("i") % SIZE)
    flat = TensorType("f32", (SIZE * SIZE,))
    (line,) = structured(
        b, "tensor.map", [v], par={"i": SIZE * SIZE}, reads=[at], body=body.block(values), types=[flat]
    )
    body, values = scalar_body(["f32"])
    body.do("scalar.yield", body.value("scalar.mul", values[0], values[0]))
    back = (Sym("i") * SIZE + Sym("j"),)
    (out,) = structured(
        b,
        "tensor.map",
        [line],
        par={"i": SIZE, "j": SIZE},
        reads=[back],
        body=body.block(values),
        types=[SQUARE],
    )
    return out


def _row_sum(b: Builder, v: Value) -> Value:
    body, (x, total) = scalar_body(["f32", "f32"])
    body.do("scalar.yield", body.value("scalar.add", x, total))
    (out,) = structured(
        b, "tensor.reduce", [v], par={"i": SIZE}, red={"j": SIZE}, reads=[(Sym("i"), Sym("j"))],
        body=body.block((x, total)), types=[ROW], init=(0.0,),
    )  # fmt: skip
    return out


def _product(b: Builder, x: Value, w: Value) -> Value:
    body, (p, q, total) = scalar_body(["f32", "f32", "f32"])
    body.do("scalar.yield", body.value("scalar.fma", p, q, total))
    i, j, k = map(Sym, "ijk")
    (out,) = structured(
        b, "tensor.contract", [x, w], par={"i": SIZE, "j": SIZE}, red={"k": SIZE}, reads=[(i, k), (k, j)],
        body=body.block((p, q, total)), types=[SQUARE], init=(0.0,),
    )  # fmt: skip
    return out


def all_partitions(graph: OpGraph, costs: Mapping[int, float]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every partition into sets with a cost whose kernels do not wait for each other, with what it costs."""
    whole = (1 << len(graph.ops)) - 1

    def rest(left: int) -> Iterator[tuple[int, ...]]:
        if not left:
            yield ()
            return
        low = left & -left
        for s in costs:
            if s & low and not s & ~left:
                for others in rest(left & ~s):
                    yield (s, *others)

    for sets in rest(whole):
        if not waiting(graph, sets):
            yield sets, sum(costs[s] for s in sets)
