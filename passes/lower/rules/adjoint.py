"""graph.adjoint: the tensor ops of the op's own lowering, transposed; they are its semantics as well."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tilewright.ir import Builder, Func, Level, Module, Op, Pairs, TensorType, Value, interpret
from tilewright.ir.graph_ops.adjoint import evaluate_with
from tilewright.ir.nodes import Block
from tilewright.ir.opdef import Attrs, op_def
from tilewright.ir.types import FLOATS, dtype_name, numpy_dtype
from tilewright.passes.lower.adjoint.derive import adjoint
from tilewright.passes.lower.lowering import lowering


@lowering("graph.adjoint")
def derived(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Transposes what the op it is the adjoint of is lowered to."""
    attrs = op.attributes
    given = attrs["given"]
    count = len(x) - len(given)
    cotangents = dict(zip(given, x[count:], strict=True))
    return adjoint(b, attrs["of"], attrs["attrs"].as_dict(), x[:count], cotangents, attrs["wrt"])


def evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    """The lowering, made for the types of the arrays and interpreted.

    Where the interpreter holds every float as float64, that is the lowering of float64.
    """
    types = tuple(TensorType(dtype_name(x.dtype), x.shape) for x in inputs)
    widened = numpy_dtype("f32") == np.float64
    own = _widened(attrs["of"], attrs["attrs"]) if widened else attrs["attrs"]
    module = _lowered(types, attrs["of"], own, attrs["wrt"], attrs["given"])
    return interpret(module, *inputs, precision="fp64" if widened else "native")


def _widened(of: str, attrs: Pairs) -> Pairs:
    """The attributes of the op `of` with float64 for every dtype of floats, in a nested adjoint as well."""
    schema, out = op_def(of).attrs, {}
    for key, value in attrs.as_dict().items():
        if schema[key].kind.startswith("dtype") and value in FLOATS:
            value = "f64"
        elif isinstance(value, Pairs):
            value = _widened(str(attrs.as_dict()["of"]), value)
        out[key] = value
    return Pairs.of(out)


@lru_cache(maxsize=64)
def _lowered(
    types: tuple[TensorType, ...], of: str, attrs: Pairs, wrt: tuple[int, ...], given: tuple[int, ...]
) -> Module:
    b, params = Builder(), tuple(map(Value, types))
    count = len(types) - len(given)
    cotangents = dict(zip(given, params[count:], strict=True))
    results = adjoint(b, of, attrs.as_dict(), params[:count], cotangents, wrt)
    b.emit("tensor.return", results, types=())
    func = Func(Level.TENSOR, "main", Block(params, tuple(b.ops)), tuple(v.type for v in results))
    return Module("adjoint", (func,))


evaluate_with(evaluate)
