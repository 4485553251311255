"""Modules of graph ops on the same inputs, their inputs, and the agreement of everything that runs them."""

import numpy as np

import tilewright as tw
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.ir import Builder, Func, Level, Module, Value
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, Pipeline, run_pipeline

FLOATS = ("f16", "bf16", "f32", "f64")


def module_of(calls, types):
    """A module whose results are those of several graph ops, each (name, operands, attrs)."""
    params = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
    b = Builder("test:op")
    results = []
    for name, used, attrs in calls:
        results += b.emit(f"graph.{name}", [params[i] for i in used], attrs)
    b.emit("graph.return", results)
    return Module("m", (Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results)),))


def sample(t, seed=0):
    rng = np.random.default_rng(seed)
    low = 0 if t.dtype[0] in ("b", "u") and t.dtype not in FLOATS else -3
    x = rng.integers(low, 2 if t.dtype == "bool" else 4, t.shape)
    return np.asarray(x / 2 if t.dtype in FLOATS else x).astype(storage_dtype(t.dtype))


def same(got, wanted, tolerance=1e-2):
    for g, w in zip(got, wanted, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        g, w = g.astype(np.float64), w.astype(np.float64)
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


def agree(module, inputs, *, compiled=True):
    """The results of the reference, which the tensor level and generated code must agree with."""
    wanted = tw.interpret(module, *inputs)
    pipeline = Pipeline.parse("infer-shapes, graph-to-tensor")
    lowered = run_pipeline(module, pipeline, PassContext(verify_each=True))
    same(tw.interpret(lowered, *inputs), wanted)
    if compiled:
        with tw.compile(module, target="opencl") as exe:
            same(exe(*inputs), wanted)
    return wanted


def relay(params, call):
    """The module of a Relay function whose body is one call."""
    text = f'#[version = "0.0.5"]\ndef @main({params}) {{\n  {call}\n}}\n'
    return import_module(read_source(text, "test.relay"))
