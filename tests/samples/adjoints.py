"""Modules with derived adjoints, and their comparison with differences in float64."""

import numpy as np

import tilewright as tw
from tilewright.ir import Builder, Func, Level, Module, Value, dtype_name
from tilewright.ir.nodes import Block, Pairs
from tilewright.ir.types import FLOATS


def adjoint_module(op):
    """A module of one graph.adjoint of the graph op `op`: inputs are its operands, then cotangents.

    Returned beside the positions of the results that have one, and of the operands it gives gradients for.
    """
    params = tuple(Value(v.type, f"x{i}") for i, v in enumerate(op.operands))
    given = tuple(i for i, r in enumerate(op.results) if r.tensor.dtype in FLOATS)
    wrt = tuple(i for i, v in enumerate(op.operands) if v.tensor.dtype in FLOATS)
    back = tuple(Value(op.results[i].type, f"g{i}") for i in given)
    b = Builder("test:op'")
    attrs = {"of": op.name, "attrs": Pairs(op.attrs), "wrt": wrt, "given": given}
    results = b.emit("graph.adjoint", (*params, *back), attrs)
    b.emit("graph.return", results)
    func = Func(Level.GRAPH, "main", Block((*params, *back), tuple(b.ops)), tuple(r.type for r in results))
    return Module("adjoint", (func,)), given, wrt


def widened(arrays):
    """Arrays of floats as float64, others as they are."""
    return [np.asarray(a, np.float64) if dtype_name(a.dtype) in FLOATS else a for a in arrays]


def check_adjoint(module, arrays, seed=0, tolerance=1e-6):
    """Assert that the derived adjoint of the only op of `module` agrees with central differences.

    Returns the module of the adjoint and its inputs, all floats as float64.
    """
    (op,) = module.main.body.ops[:-1]
    adjoint, given, wrt = adjoint_module(op)
    tw.verify(adjoint)
    rng = np.random.default_rng(seed)
    x = widened(arrays)
    g = [rng.standard_normal(op.results[i].tensor.shape) for i in given]

    def value(moved):
        y = tw.interpret(module, *moved, precision="fp64")
        return sum(float((y[i] * c).sum()) for i, c in zip(given, g, strict=True))

    gradients = tw.interpret(adjoint, *x, *g, precision="fp64")
    for k, own in zip(wrt, gradients, strict=True):
        assert (own.dtype, own.shape) == (np.float64, x[k].shape)
        v, h = rng.standard_normal(x[k].shape), 1e-6
        up, down = ([*x[:k], x[k] + s * h * v, *x[k + 1 :]] for s in (1, -1))
        numeric = (value(up) - value(down)) / (2 * h)
        norm = float(np.linalg.norm(own) * np.linalg.norm(v))
        assert abs(float((own * v).sum()) - numeric) <= tolerance * (abs(numeric) + norm + 1), (op.name, k)
    return adjoint, [*x, *g]
