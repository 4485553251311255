"""Attention with what training saves, and what comes back through it, as graphs; their kernels, emulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from codegen_samples import run

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.ir import Block, Func, Level, Module, Ref, TensorType, Value
from tilewright.ir.graph_code import GraphWriter
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import THREAD, Stages, official_stages

TARGET = "cuda:sm_90a"


def training_attention(
    heads: Sequence[int] = (2,),
    queries: int = 24,
    keys: int = 24,
    size: int = 16,
    dtype: str = "f16",
    *,
    shared: int = 0,
    causal: bool = False,
    window: int | None = None,
    bias: bool = False,
    dropout: bool = False,
    draw: str = "random_bits",
    stored: bool = False,
    backward: bool = True,
    stacked: bool = False,
) -> Module:
    """Results and logarithms of sums, then gradients of q, k, v where `backward`.

    heads: extents before the matrices, the last `shared` of which keys and values do not have. causal: the
    last query sees all keys, each one before it a key less; window: of those the last so many. stored:
    whether the keys that queries see are given, for each of the first of `heads`. stacked: q, k and v lie in
    one array, side by side.
    """
    w = GraphWriter()
    params: list[Value] = []

    def given(name: str, kind: str, *shape: int):
        params.append(Value(TensorType(kind, shape), name))
        return w.tensor(params[-1])

    own = (*heads[: len(heads) - shared], *(1,) * shared)
    if stacked:
        whole = given("qkv", dtype, *heads, queries, 3 * size)
        begins = ((*(0,) * len(heads), 0, i * size) for i in range(3))
        sizes, ones = (*heads, queries, size), (1,) * (len(heads) + 2)
        q, k, v = (w.op("strided_slice", whole, begin=b, size=sizes, strides=ones) for b in begins)
    else:
        q, k, v = (given(n, dtype, *lead, m, size) for n, lead, m in
                   (("q", heads, queries), ("k", own, keys), ("v", own, keys)))  # fmt: skip
    names, others = [], []
    if bias:
        names.append("bias")
        others.append(given("bias", "f32", queries, keys))
    if causal:
        names.append("seen")
        place = w.op("arange", stop=keys, dtype="i32")
        rows = w.op("arange", stop=queries, dtype="i32").reshape(queries, 1)
        last = rows + (keys - queries)
        seen = w.op("less_equal", place, last)
        if window is not None:
            seen = w.op("logical_and", seen, w.op("less", last - window, place))
        others.append(seen)
    if stored:
        names.append("seen")
        others.append(given("seen", "bool", heads[0], *(1,) * len(heads), keys))
    if dropout:
        names.append("kept")
        words = given("seed", "u32", 2), given("step", "u32")
        shape = (*heads, queries, keys)
        if draw == "random_mask":
            others.append(w.op(draw, *words, shape=shape, kept=KEPT, bits=16))
        else:
            others.append(w.op("less", w.op(draw, *words, shape=shape, bits=16), w.number(KEPT, "u16")))
    attrs = {"scale": size**-0.5, "others": tuple(names), "kept_scale": 65536 / KEPT if dropout else 1.0}
    results = [*w.ops_of("attention", (q, k, v, *others), **attrs)]
    if backward:
        g = given("g", dtype, *heads, queries, size)
        results += w.ops_of("attention_backward", (q, k, v, *results, g, *others), **attrs)
    w.builder.emit("graph.return", [r.value for r in results], types=())
    types = tuple(r.value.type for r in results)
    # as in a training step: the backward pass shares no op with the forward pass
    attrs = (("loss", 0), ("recomputed", 0)) if backward else ()
    func = Func(Level.GRAPH, "main", Block(tuple(params), w.ops), types, attrs)
    return Module("training_attention", (func,), (), w.constants)


#: of 65536 weights so many are kept
KEPT = 49152


def inputs_of(module: Module, seed: int = 0) -> list[np.ndarray]:
    """Numbers for the parameters of @main."""
    rng = np.random.default_rng(seed)
    arrays = []
    for p in module.main.params:
        t = p.tensor
        words = t.dtype == "u32"
        values = rng.integers(0, 1000, t.shape) if words else rng.standard_normal(t.shape)
        if t.dtype == "bool":
            values = values > -1.0
        arrays.append(values.astype(storage_dtype(t.dtype)))
    return arrays


def kernels_of(module: Module, precision: str = "fp32", **options: str) -> Module:
    """The tensor-level kernels with parameters; options: text in place of passes, by their names with `_`."""
    stages = official_stages(Level.GRAPH, "cuda", precision)
    for name, text in options.items():
        stages = stages.replace(name.replace("_", "-"), text)
    return run_pipeline(module, (stages.graph + stages.tensor), context())


def context() -> PassContext:
    return PassContext(target=TARGET, hardware=load_hardware(TARGET))


def thread_form(module: Module, kernel: Func) -> Func:
    """One kernel as what a thread does; without launches there is nothing to relay."""
    alone = Module("m", (kernel,), (), module.constants)
    stages = Stages(thread=THREAD["cuda"].without("relay-launches"))
    return run_pipeline(alone, stages.whole, context()).funcs[0]


def templates(module: Module) -> list[str]:
    """The templates of the kernels that @main calls, in order."""
    funcs = {f.name: f for f in module.funcs}
    calls = [op for op in module.main.body.ops if op.name == "tensor.call"]
    return [str(dict(funcs[callee(op)].attrs)["decision"].template) for op in calls]


def callee(op) -> str:
    ref = op["callee"]
    assert isinstance(ref, Ref)
    return ref.name


def emulated(module: Module, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of @main with every kernel on the emulator."""
    funcs = {f.name: f for f in module.funcs}
    env = dict(zip(module.main.params, inputs, strict=True))
    for op in module.main.body.ops[:-1]:
        if op.name == "tensor.constant":
            env[op.result] = np.asarray(module.constants[str(op["name"])])
        else:
            arrays = [env[v].reshape(p.tensor.shape) for v, p in
                      zip(op.operands, funcs[callee(op)].params, strict=True)]  # fmt: skip
            made = run(thread_form(module, funcs[callee(op)]), "emulator", arrays).values()
            env.update((r, a.reshape(r.tensor.shape)) for r, a in zip(op.results, made, strict=True))
    return [env[v] for v in module.main.body.ops[-1].operands]


def exact(module: Module, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results in float64."""
    return [np.asarray(a) for a in tw.interpret(module, *inputs, precision="fp64")]
