"""Steps of recurrences cut into kernels, and single products with maps, for the families of gates."""

from collections.abc import Callable
from functools import cache

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.frontends.zoo.recurrent import lstm_classifier
from tilewright.frontends.zoo.speech import deep_speech
from tilewright.ir import Func, Level, Module, TensorType, Value, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.kernels.resident_tiles.view import TilesView
from tilewright.passes.pipelines import official_stages
from tilewright.passes.rewriting.values import with_types

H200 = load_hardware("H200")
CTX = PassContext(target="cuda:sm_90a", hardware=H200)
TEMPLATES = ("product_gates", "product_gates_lanes")


@cache
def cut(network: str, precision: str = "bf16", batch: int = 32) -> Module:
    """A training step of a recurrent network as kernels, before gates are joined with products."""
    if network == "lstm":
        net = lstm_classifier(0, layers=1, width=32, steps=4, classes=3, batch=batch)
    else:
        net = deep_speech(0, layers=1, width=64, channels=2, frequencies=9, frames=8, batch=batch)
    module = tw.train_step(net, "cross_entropy", "adam")
    for _, pipeline in official_stages(Level.GRAPH, "cuda", precision).until("join-gates"):
        module = run_pipeline(module, pipeline.replace("join-recurrences", "join-recurrences{when=never}")
                              if "join-recurrences" in pipeline.names else pipeline, CTX)  # fmt: skip
    return module


@cache
def kernels(network: str, precision: str = "bf16", batch: int = 32) -> tuple[Func, ...]:
    """The different kernels of gates of its steps."""
    module = run_pipeline(cut(network, precision, batch), Pipeline.parse("join-gates{when=always}"), CTX)
    taken = [f for f in module.funcs if (d := decision_of(f)) is not None and d.template in TEMPLATES]
    return tuple(dense(f.with_attrs(decision=None)) for f in taken)


def dense(kernel: Func) -> Func:
    """The kernel with arrays of its own for results that are parts of a join."""
    parts = [v for v in kernel.body.ops[-1].operands if not v.tensor.dense]
    return with_types(
        kernel, kernel.body.ops, {v: Value(TensorType(v.tensor.dtype, v.tensor.shape)) for v in parts}
    )


def forward_and_backward(
    network: str, precision: str, view: Callable[[Func], TilesView | str], batch: int = 32
) -> tuple[Func, Func]:
    """A kernel whose units have several gates, and one that sums over the gates' gradients."""
    viewed = [(k, v) for k in kernels(network, precision, batch) if not isinstance(v := view(k), str)]
    step, units = next((k, v.units) for k, v in viewed if v.most_sums > 1)
    return step, next(k for k, v in viewed if v.length > units)


def product(rows: int, terms: int, columns: int, dtype: str = "bf16") -> Func:
    """A kernel of one product of a state with weights that lie in rows of the sum."""
    shape, sizes = f"f32[{rows}, {columns}]", f"par = (m: {rows}, n: {columns}), red = (c: {terms})"
    return parse(f"""module @m {{
  tensor.func @k(%h: {dtype}[{rows}, {terms}], %w: {dtype}[{columns}, {terms}]) -> {shape} {{
    %0 = tensor.contract(%h, %w, {sizes}, reads = [[m, c], [n, c]]) : {shape} {{
      ^(%a: {dtype}, %b: {dtype}, %s: f32)
      %x = scalar.cast(%a, dtype = "f32") : f32
      %y = scalar.cast(%b, dtype = "f32") : f32
      %z = scalar.fma(%x, %y, %s) : f32
      scalar.yield(%z)
    }}
    tensor.return(%0)
  }}
}}""").funcs[0]  # fmt: skip


def step_behind_a_join(state: str) -> Func:
    """A step of a cell whose state and result are boxes of arrays of all steps."""
    return parse(f"""module @m {{
  tensor.func @k(%h: {state}, %w: f16[64, 32], %c: f16[32, 32]) -> f16[1, 32, 32] {{
    %0 = tensor.contract(%h, %w, par = (m: 32, n: 64), red = (c: 32), reads = [[0, m, c], [n, c]])
      : f32[32, 64] {{
      ^(%a: f16, %b: f16, %s: f32)
      %x = scalar.cast(%a, dtype = "f32") : f32
      %y = scalar.cast(%b, dtype = "f32") : f32
      %z = scalar.fma(%x, %y, %s) : f32
      scalar.yield(%z)
    }}
    %1 = tensor.map(%0, %0, %c, par = (o: 1, m: 32, u: 32), reads = [[m, u], [m, u + 32], [m, u]])
      : f16[1, 32, 32] {{
      ^(%a: f32, %b: f32, %d: f16)
      %x = scalar.mul(%a, %b) : f32
      %y = scalar.cast(%d, dtype = "f32") : f32
      %z = scalar.add(%x, %y) : f32
      %r = scalar.cast(%z, dtype = "f16") : f16
      scalar.yield(%r)
    }}
    tensor.return(%1)
  }}
}}""").funcs[0]  # fmt: skip
