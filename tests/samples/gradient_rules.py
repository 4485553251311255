"""One graph op and its gradients: drawn instances, products with its Jacobian by rule and by adjoint."""

from dataclasses import dataclass, replace

import numpy as np

from tests.samples.gradients import check_gradient
from tilewright import interpret
from tilewright.ir import Func, InputError, Level, Module, TensorType, Value, dtype_name
from tilewright.ir.graph_code import GraphWriter
from tilewright.ir.opdef import op_def
from tilewright.ir.types import FLOATS
from tilewright.passes.graph.gradients.differentiate import backward
from tilewright.passes.graph.gradients.registry import Backward, derived
from tilewright.tools.fuzz.generate import DRAWERS
from tilewright.tools.fuzz.program import RandomGraph, Rejected


@dataclass(frozen=True)
class OpInstance:
    """A graph op (name without `graph.`), its operands as arrays (floats as float64) and its attributes."""

    name: str
    arrays: tuple[np.ndarray, ...]
    attrs: dict

    @property
    def floats(self):
        """Positions of the operands of floats."""
        return tuple(i for i, a in enumerate(self.arrays) if a.dtype.kind == "f")

    def types(self, dtype="f32"):
        """Types of the operands, floats as `dtype`."""
        names = (dtype if a.dtype.kind == "f" else dtype_name(a.dtype) for a in self.arrays)
        return [TensorType(n, a.shape) for n, a in zip(names, self.arrays, strict=True)]


def drawn_ops(drawer, count, seed=0):
    """`count` instances, with an operand of floats, of the op that a drawer of the fuzzer draws last.

    Floats are moved a little, since draws of 16 bits have ties, where largest elements have no derivative.
    """
    out = []
    while len(out) < count:
        graph = RandomGraph(seed)
        seed += 1
        try:
            DRAWERS[drawer](graph)
        except (Rejected, InputError):
            continue
        op = next(op for op in reversed(graph.builder.ops) if op.name != "graph.constant")
        wide = {e.value: e.wide for e in graph.entries}
        name = op.name.removeprefix("graph.")
        rng, arrays = np.random.default_rng(seed), [np.asarray(wide[v]) for v in op.operands]
        moved = (a + 1e-2 * rng.standard_normal(a.shape) if a.dtype.kind == "f" else a for a in arrays)
        drawn = OpInstance(name, tuple(moved), dict(op.attrs))
        out += [drawn] if drawn.floats else []
    return out


def forward_module(op, dtype="f32"):
    """A module of the op alone."""
    w, params = GraphWriter(), [Value(t, f"x{i}") for i, t in enumerate(op.types(dtype))]
    results = w.builder.emit(f"graph.{op.name}", params, op.attrs)
    return _module(w, params, results)


def vjp_module(op, dtype="f32", *, by_adjoint=False):
    """A module of the op's operands and one cotangent per result of floats, with one gradient per operand of
    floats: by the op's rule, or by its derived adjoint. An operand without a gradient has zeros.
    """
    w, params = GraphWriter(), [Value(t, f"x{i}") for i, t in enumerate(op.types(dtype))]
    results = w.builder.emit(f"graph.{op.name}", params, op.attrs)
    cotangents = {r: Value(r.type, f"g{i}") for i, r in enumerate(results) if r.tensor.dtype in FLOATS}
    wrt = [params[i] for i in op.floats]
    if by_adjoint:
        tensors = [tuple(map(w.tensor, values)) for values in (params, results)]
        given = tuple(w.tensor(cotangents[r]) if r in cotangents else None for r in results)
        needed = tuple(i in op.floats for i in range(len(params)))
        found = derived(Backward(w, w.ops[-1], *tensors, given, needed))
        gradients = {v: g for v, g in zip(params, found, strict=True) if g is not None}
    else:
        gradients = backward(w, w.ops, {r: w.tensor(g) for r, g in cotangents.items()}, wrt)
    zeros = {v: w.full(0, v.tensor) for v in wrt if v not in gradients}
    return _module(w, [*params, *cotangents.values()], [(gradients.get(v) or zeros[v]).value for v in wrt])


def cotangents_of(op, seed=0):
    """Random float64 cotangents of the op's results of floats."""
    rng = np.random.default_rng(seed)
    definition = op_def(f"graph.{op.name}")
    types = definition.infer(op.types(), dict(definition.complete(op.attrs)))
    return [rng.standard_normal(t.shape) for t in types if t.dtype in FLOATS]


def check_rule(op, *, second=False, tolerance=1e-6):
    """The op's gradients agree with central differences; with `second`, so do those of its gradients."""
    wrt = [f"x{i}" for i in op.floats]
    check_gradient(_and_inputs(forward_module(op)), op.arrays, wrt, directions=1, tolerance=tolerance)
    if second:
        module, cotangents = _and_inputs(vjp_module(op)), cotangents_of(op)
        names = [*wrt, *(f"g{i}" for i in range(len(cotangents)))]
        check_gradient(module, [*op.arrays, *cotangents], names, directions=1, tolerance=tolerance)


def check_adjoint(op, tolerance=1e-11):
    """The op's rule and its derived adjoint give the same gradients in float64."""
    inputs = [*op.arrays, *cotangents_of(op)]
    own, other = (
        interpret(vjp_module(op, by_adjoint=flag), *inputs, precision="fp64") for flag in (False, True)
    )
    for a, b in zip(own, other, strict=True):
        assert np.linalg.norm(a - b) <= tolerance * (np.linalg.norm(b) + 1e-3), op


def _and_inputs(module):
    """The module with its inputs among its results, so that these depend on all of them."""
    main = module.main
    body = main.body
    results = (*body.ops[-1].operands, *main.params)
    last = replace(body.ops[-1], operands=results)
    ops = body.with_ops((*body.ops[:-1], last))
    return module.with_funcs((replace(main, body=ops, result_types=tuple(v.type for v in results)),))


def _module(w, params, results):
    w.builder.emit("graph.return", results, types=())
    func = Func(Level.GRAPH, "main", w.builder.block(tuple(params)), tuple(r.type for r in results))
    return Module("m", (func,), constants=w.constants)
