"""Convolutions by every algorithm, and how far their results are from float64."""

import numpy as np

import tilewright as tw
from tilewright.ir import Builder, Constants, Func, Level, Module, TensorType, Value
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, Pipeline, run_pipeline

TENSORS = "infer-shapes, graph-to-tensor, fold-constant-tensors, dce"


def conv_module(data, kernel, algorithm, *, dtype="f32", constant=False, seed=0, arrays=True, **attrs):
    """A convolution of an input with a kernel that is an input or a constant, with or without data."""
    types = [TensorType(dtype, data), TensorType(dtype, kernel)]
    b = Builder("test:conv")
    params = [Value(types[0], "x")]
    data_of = {}
    if constant:
        (weight,) = b.emit("graph.constant", (), {"name": "w"}, types=[types[1]])
        rng = np.random.default_rng(seed + 1)
        if arrays:
            data_of["w"] = rng.standard_normal(kernel).astype(storage_dtype(dtype))
    else:
        weight = Value(types[1], "w")
        params.append(weight)
    results = b.emit("graph.conv2d", (params[0], weight), {"algorithm": algorithm, **attrs})
    b.emit("graph.return", results)
    main = Func(Level.GRAPH, "main", b.block(tuple(params)), tuple(r.type for r in results))
    return Module("m", (main,), (), Constants(data_of))


def inputs_of(module, seed=0):
    """Normally distributed inputs."""
    rng = np.random.default_rng(seed)
    types = [p.tensor for p in module.main.params]
    return [rng.standard_normal(t.shape).astype(storage_dtype(t.dtype)) for t in types]


def tensors_of(module):
    """The module at the tensor level, every pass verified."""
    return run_pipeline(module, Pipeline.parse(TENSORS), PassContext(verify_each=True))


def relative_error(got, wanted):
    """Largest error over the largest result."""
    return float(np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max())


def errors(module, *, compiled=False, seed=0):
    """Relative errors against float64 of the tensor level and, if asked, of the compiled program."""
    x = inputs_of(module, seed)
    (wanted,) = tw.interpret(module, *x, precision="fp64")
    runs = [tw.interpret(tensors_of(module), *x)[0]]
    if compiled:
        with tw.compile(module, target="opencl") as exe:
            runs.append(exe(*x)[0])
    for got in runs:
        assert got.shape == wanted.shape
        assert got.dtype == storage_dtype(module.main.params[0].tensor.dtype)
    return [relative_error(got, wanted) for got in runs]
