"""Forward mode at the tensor level, from the linearisation that adjoints use: J v beside J^T u."""

import numpy as np

from tilewright.ir import Block, Builder, Func, Level, Module, Sym, TensorType, Value, interpret
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.adjoint.bodies import Linearised
from tilewright.passes.lower.scalars import written

FOLDS = ("tensor.reduce", "tensor.window", "tensor.contract")


class Forward:
    """Writes tangents of tensor ops on float64 behind the ops; those of values without one are zero."""

    def __init__(self, ops, tangents):
        self.b, self.of = Builder(), dict(tangents)
        for op in ops:
            self.b.append(op)
        for op in ops:
            floats = any(r.tensor.dtype in FLOATS for r in op.results)
            if floats and any(v in self.of for v in op.operands):
                FORWARD[op.name](self, op)

    def map_like(self, op, name, inputs, body, results, extra=None):
        """An op over the domain of `op` with more operands: (value, read, fill) each."""
        values = [v for v, _, _ in inputs]
        attrs = {
            "par": op["par"],
            "reads": tuple(r for _, r, _ in inputs),
            "fill": tuple(f for _, _, f in inputs),
            **(extra or {}),
        }
        dtypes = [v.tensor.dtype for v in values]
        dtypes += [t.dtype for t in results] if "init" in attrs else []
        return self.b.emit(name, values, attrs, types=results, body=written(self.b, dtypes, body))


def _inputs(f, op):
    """The operands with their reads, then the tangents of those that have one, which are 0 outside."""
    own = list(zip(op.operands, reads(op), fills(op), strict=True))
    moved = [(k, (f.of[v], r, None if o is None else 0.0)) for k, (v, r, o) in enumerate(own) if v in f.of]
    return own, moved


def _map(f, op):
    own, moved = _inputs(f, op)
    for k, result in enumerate(op.results):
        if result.tensor.dtype not in FLOATS:
            continue

        def body(i, p, k=k):
            values = Linearised(i, op.body, p[: len(own)])
            seeds = {op.body.params[at]: t for (at, _), t in zip(moved, p[len(own) :], strict=True)}
            out = op.body.ops[-1].operands[k]
            return values.tangents(seeds).get(out) or i.const(0.0, "f64")

        (f.of[result],) = f.map_like(op, "tensor.map", [*own, *(m for _, m in moved)], body, [result.tensor])


def _fold(f, op):
    """Sums, and extremes: tangents of the elements that equal the result, over their number.

    Products raise NotImplementedError.
    """
    own, moved = _inputs(f, op)
    at_result = (op.result, tuple(map(Sym, dims(op, "par"))), None)
    last = next(o for o in op.body.ops if op.body.ops[-1].operands[0] in o.results)
    if last.name == "scalar.mul":
        raise NotImplementedError(last.name)
    extreme = last.name in ("scalar.max", "scalar.min")
    element = next(v for v in last.operands if v is not op.body.params[-1]) if extreme else None

    def body(i, p, count=False):
        *elements, y, acc = p
        values = Linearised(i, op.body, [*elements[: len(own)], i.const(0.0, "f64")])
        seeds = {op.body.params[at]: t for (at, _), t in zip(moved, elements[len(own) :], strict=True)}
        if not extreme:
            out = values.tangents(seeds).get(op.body.ops[-1].operands[0])
            return acc if out is None else out + acc
        chosen = values.env[element].equals(y)
        t = i.const(1.0, "f64") if count else values.tangents(seeds).get(element) or i.const(0.0, "f64")
        return chosen.select(t, 0) + acc

    inputs, extra = [*own, *(m for _, m in moved), at_result], {"red": op["red"], "init": (0.0,)}
    t = [op.result.tensor]
    (total,) = f.map_like(op, "tensor.reduce", inputs, body, t, extra)
    if extreme:
        (ties,) = f.map_like(op, "tensor.reduce", inputs, lambda i, p: body(i, p, count=True), t, extra)
        names = at_result[1]
        pair = [(total, names, None), (ties, names, None)]
        (total,) = f.map_like(op, "tensor.map", pair, lambda i, p: p[0] / p[1].max(1), t)
    f.of[op.result] = total


def _scan(f, op):
    """Running sums; products raise NotImplementedError."""
    if op.body.ops[-2].name != "scalar.add":
        raise NotImplementedError(op.body.ops[-2].name)
    own, moved = _inputs(f, op)
    t = TensorType("f64", op.result.tensor.shape)

    def body(i, p):
        values = Linearised(i, op.body, [p[0], i.const(0.0, "f64")])
        return values.tangents({op.body.params[0]: p[1]})[op.body.ops[-1].operands[0]]

    (element,) = f.map_like(op, "tensor.map", [*own, *(m for _, m in moved)], body, [t])
    attrs = {**op.attributes, "reads": (tuple(map(Sym, dims(op, "par"))),), "fill": ()}
    block = written(f.b, ["f64", "f64"], lambda i, p: p[0] + p[1])
    (f.of[op.result],) = f.b.emit("tensor.scan", [element], attrs, types=[t], body=block)


def _gather(f, op):
    if op.operands[0] in f.of:
        attrs = {**op.attributes, "fill_value": 0.0}
        operands = [f.of[op.operands[0]], *op.operands[1:]]
        (f.of[op.result],) = f.b.emit("tensor.gather", operands, attrs, types=[op.result.type])


FORWARD = {"tensor.map": _map, **dict.fromkeys(FOLDS, _fold), "tensor.scan": _scan, "tensor.gather": _gather}


def push_forward(ops, params, results, wrt, arrays, tangents):
    """J v of a tensor program on float64: tangents of `results` for those of the params `wrt`."""
    moved = {params[k]: Value(params[k].type) for k in wrt}
    f = Forward(ops, moved)
    zeros = {r: np.zeros(r.tensor.shape) for r in results if r not in f.of}
    out = [f.of[r] for r in results if r in f.of]
    f.b.emit("tensor.return", out, types=())
    block = Block((*params, *moved.values()), tuple(f.b.ops))
    module = Module("jvp", (Func(Level.TENSOR, "main", block, tuple(v.type for v in out)),))
    found = iter(interpret(module, *arrays, *tangents))
    return [zeros[r] if r in zeros else next(found) for r in results]
