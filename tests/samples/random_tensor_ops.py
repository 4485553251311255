"""Random maps and sums over small domains: strides, dilation, views, clamps, fills, empty extents."""

from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, Sym, TensorType, Value, scalar_body
from tilewright.ir.expr import maximum, minimum
from tilewright.ir.scalar_code import Scalar, Scalars
from tilewright.ir.simplify import interval

MOST_ELEMENTS = 200
#: names of each dimension, those of dimensions that inverse reads make among them
_NAMES = (("i0", "n", "digit4"), ("i1", "y", "digit3"), ("i2", "x", "e0"), ("i3", "k", "i0_step"))


@dataclass(frozen=True)
class TensorOp:
    """One op on float64, at most quadratic in each of its operands."""

    params: tuple[Value, ...]
    op: Op

    def module(self) -> Module:
        results = self.op.results
        b = Builder()
        b.append(self.op)
        b.emit("tensor.return", results, types=())
        func = Func(Level.TENSOR, "main", Block(self.params, tuple(b.ops)), tuple(r.type for r in results))
        return Module("random", (func,))


def _index(rng, dims):
    names = list(dims)

    def dim():
        return Sym(names[rng.integers(len(names))])

    a, b, n = dim(), dim(), int(rng.integers(2, 5))
    forms = [
        int(rng.integers(0, 2)),
        a,
        a,
        a * int(rng.integers(1, 4)) + b * int(rng.integers(1, 4)) - int(rng.integers(0, 3)),
        dims[a.name] - 1 - a,
        a // n,
        a % n,
        (a * dims[b.name] + b) // n,
        maximum(0, minimum(a + b - 1, 3)),
        maximum(0, minimum(a - 1, 2)),
        maximum(a - 1, 1 - a),
        minimum((a * 2 + 1) // n, 2),
    ]
    return forms[rng.integers(len(forms))]


def _view(rng, dims):
    """The row-major place in the domain, taken apart in two."""
    place = 0
    for d, n in dims.items():
        place = place * n + Sym(d)
    size = prod(dims.values())
    n = int(rng.choice([k for k in range(1, size + 1) if size % k == 0]))
    return [place // n, place % n]


def _operand(rng, dims):
    """A shape, a read of it, and the value outside."""
    read = _view(rng, dims) if rng.random() < 0.3 else [_index(rng, dims) for _ in range(rng.integers(0, 4))]
    bounds = [interval(e, {d: (0, n - 1) for d, n in dims.items()}) for e in read]
    shape = tuple(int(max(1, high + 1 - int(rng.integers(0, 2)))) for _, high in bounds)
    leaves = any(low < 0 or high >= n for (low, high), n in zip(bounds, shape, strict=True))
    return shape, tuple(read), 0.5 if leaves else (0.0 if rng.random() < 0.3 else None)


def random_op(seed):
    """The op of a seed."""
    rng = np.random.default_rng(seed)
    while True:
        dims = {_NAMES[k][rng.integers(3)]: int(rng.integers(1, 5)) for k in range(rng.integers(1, 5))}
        operands = [_operand(rng, dims) for _ in range(rng.integers(1, 4))]
        if max(sum(prod(s) for s, _, _ in operands), prod(dims.values())) <= MOST_ELEMENTS:
            return _written(rng, dims, operands)


def _written(rng, dims, operands):
    red = {d: n for d, n in dims.items() if rng.random() < 0.4}
    par = {d: n for d, n in dims.items() if d not in red}
    if rng.random() < 0.05 and par:
        par[next(iter(par))] = 0
    params = tuple(Value(TensorType("f64", shape)) for shape, _, _ in operands)
    values = list(params)
    if len(params) > 1 and operands[0][0] == operands[1][0] and rng.random() < 0.5:
        values[1] = params[0]
    count = 2 if rng.random() < 0.3 else 1
    attrs = {
        "par": Pairs.of(par),
        "reads": tuple(r for _, r, _ in operands),
        "fill": tuple(f for _, _, f in operands),
    }
    if red:
        attrs |= {"red": Pairs.of(red), "init": (0.25,) * count}
    body = _body(len(values), count, int(rng.integers(3)), Sym(next(iter(dims))), folds=bool(red))
    b = Builder()
    t = TensorType("f64", tuple(par.values()))
    b.emit("tensor.reduce" if red else "tensor.map", values, attrs, types=[t] * count, body=body)
    return TensorOp(params, b.ops[0])


def _body(operands, results, form, dim, *, folds):
    b, params = scalar_body(["f64"] * (operands + folds * results))
    i, p = Scalars(b), [Scalar(b, v) for v in params]
    h = [p[0], p[0] * 2.0, i.cast(i.index(dim), "f64") + p[0]][form]
    for x in p[1:operands]:
        h = h - x if form == 1 else h * x
    out = [h if k == 0 else h * 3.0 for k in range(results)]
    if folds:
        out = [x + total for x, total in zip(out, p[operands:], strict=True)]
    b.do("scalar.yield", *(x.value for x in out))
    return b.block(params)
