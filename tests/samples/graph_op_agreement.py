"""Runs one graph op on every level: reference, tensor level and, if asked for, compiled for OpenCL."""

import numpy as np

import tilewright as tw
from tilewright.ir import Builder, Func, Level, Module, TensorType, Value, dtype_name
from tilewright.passes import PassContext, Pipeline, run_pipeline


def module_of(name, arrays, **attrs):
    """A module of one graph op whose inputs have the types of these arrays."""
    params = tuple(Value(TensorType(dtype_name(a.dtype), a.shape), f"x{i}") for i, a in enumerate(arrays))
    b = Builder("test:op")
    results = b.emit(f"graph.{name}", params, attrs)
    b.emit("graph.return", results)
    return Module("m", (Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results)),))


def lowered(module):
    """The module at the tensor level."""
    return run_pipeline(
        module, Pipeline.parse("infer-shapes, graph-to-tensor"), PassContext(verify_each=True)
    )


def check_levels(module, arrays, *, compiled=False, tolerance=1e-5, units=0):
    """The reference's results, with which all other levels agree; integers may differ by `units`."""
    tw.verify(module)
    wanted = tw.interpret(module, *arrays)
    runs = {"lowered": tw.interpret(lowered(module), *arrays)}
    if compiled:
        with tw.compile(module, target="opencl") as exe:
            runs["opencl"] = exe(*arrays)
    for level, got in runs.items():
        for g, w in zip(got, wanted, strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype), level
            half = w.dtype.itemsize == 2
            if w.dtype.kind in "iub":
                assert np.abs(g.astype(np.int64) - w.astype(np.int64)).max(initial=0) <= units, level
                continue
            g, w = g.astype(np.float64), w.astype(np.float64)
            scale = 2e-2 if half else tolerance
            np.testing.assert_allclose(g, w, rtol=scale, atol=scale, err_msg=level)
    return wanted


def agree(name, *arrays, compiled=False, tolerance=1e-5, units=0, **attrs):
    """`check_levels` of one op."""
    module = module_of(name, arrays, **attrs)
    return check_levels(module, arrays, compiled=compiled, tolerance=tolerance, units=units)
