"""graph.adjoint: the tensor ops of the op's own lowering, transposed; they are its semantics as well."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tilewright.ir import Builder, Func, Level, Module, Op, Pairs, TensorType, Value, interpret
from tilewright.ir.graph_ops.adjoint import evaluate_with
from tilewright.ir.nodes import Block
from tilewright.ir.opdef import Attrs
from tilewright.ir.types import dtype_name, numpy_dtype
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
    module = _lowered(types, attrs["of"], attrs["attrs"], attrs["wrt"], attrs["given"])
    widened = numpy_dtype("f32") == np.float64
    return interpret(module, *inputs, precision="fp64" if widened else "native")


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
