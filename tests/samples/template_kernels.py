"""Small kernels of every template, and what a target computes for them beside the reference interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir import Attr, Constants, Module, Pairs, TensorType, parse
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.kernels.decision import with_decision
from tilewright.passes.kernels.registry import template_of
from tilewright.passes.pipelines import PACKING, TENSOR
from tilewright.running.checking import largest_error

_FMA = "{ ^(%a: f32, %b: f32, %acc: f32) %m = scalar.fma(%a, %b, %acc) : f32 scalar.yield(%m) }"
_ADD_ACC = "{ ^(%a: f32, %acc: f32) %m = scalar.add(%a, %acc) : f32 scalar.yield(%m) }"
_MAX_ACC = "{ ^(%a: f32, %acc: f32) %m = scalar.max(%a, %acc) : f32 scalar.yield(%m) }"
_EXP_SUB = "{ ^(%a: f32, %m: f32) %d = scalar.sub(%a, %m) : f32 %e = scalar.exp(%d) : f32 scalar.yield(%e) }"
_DIV = "{ ^(%a: f32, %s: f32) %q = scalar.div(%a, %s) : f32 scalar.yield(%q) }"
_BIAS_RELU = (
    '{ ^(%a: f32, %c: f32) %t = scalar.add(%a, %c) : f32 %z = scalar.const(value = 0.0, dtype = "f32") : f32 '
    "%r = scalar.max(%t, %z) : f32 scalar.yield(%r) }"
)

CONV = f"""module @conv {{
  tensor.func @main(%x: f32[2, 5, 11, 13], %res: f32[2, 24, 6, 7]) -> f32[2, 24, 6, 7], f32[2, 24, 6, 7] {{
    %w = tensor.constant(name = "w") : f32[24, 5, 3, 3]
    %bias = tensor.constant(name = "bias") : f32[24]
    %0 = tensor.contract(%x, %w, par = (n: 2, k: 24, y: 6, x: 7),
      red = (c: 5, r: 3, s: 3),
      reads = [[n, c, y * 2 + r - 1, x * 2 + s - 1], [k, c, r, s]],
      fill = [0.0, none]) : f32[2, 24, 6, 7] {_FMA}
    %1 = tensor.map(%0, %res, par = (n: 2, k: 24, y: 6, x: 7),
      reads = [[n, k, y, x], [n, k, y, x]]) : f32[2, 24, 6, 7] {{
      ^(%p: f32, %q: f32) %t = scalar.add(%p, %q) : f32 scalar.yield(%t) }}
    %2 = tensor.map(%1, %bias, par = (n: 2, k: 24, y: 6, x: 7),
      reads = [[n, k, y, x], [k]]) : f32[2, 24, 6, 7] {_BIAS_RELU}
    tensor.return(%2, %1)
  }}
}}"""
MATMUL = f"""module @matmul {{
  tensor.func @main(%x: f32[37, 48]) -> f32[37, 40] {{
    %w = tensor.constant(name = "w") : f32[40, 48]
    %0 = tensor.contract(%x, %w, par = (m: 37, k: 40),
      red = (c: 48),
      reads = [[m, c], [k, c]]) : f32[37, 40] {_FMA}
    tensor.return(%0)
  }}
}}"""
PIXELS = f"""module @pixels {{
  tensor.func @main(%x: f32[7, 8, 21], %scale: f32[7, 8]) -> f32[7, 12, 21] {{
    %w = tensor.constant(name = "w") : f32[12, 8]
    %0 = tensor.map(%x, %scale, par = (n: 7, c: 8, p: 21), reads = [[n, c, p], [n, c]]) : f32[7, 8, 21] {{
      ^(%a: f32, %b: f32) %t = scalar.mul(%a, %b) : f32 scalar.yield(%t) }}
    %1 = tensor.contract(%0, %w, par = (n: 7, k: 12, p: 21),
      red = (c: 8),
      reads = [[n, c, p], [k, c]]) : f32[7, 12, 21] {_FMA}
    tensor.return(%1)
  }}
}}"""
WINDOW = f"""module @window {{
  tensor.func @main(%x: f32[2, 6, 15, 15]) -> f32[2, 6, 8, 8], f32[2, 6, 15, 15] {{
    %w = tensor.constant(name = "w") : f32[6, 1, 3, 3]
    %0 = tensor.window(%x, par = (n: 2, k: 6, y: 8, x: 8),
      red = (r: 3, s: 3),
      reads = [[n, k, y * 2 + r - 1, x * 2 + s - 1]], fill = [-inf],
      init = [-inf]) : f32[2, 6, 8, 8] {_MAX_ACC}
    %1 = tensor.window(%x, %w, par = (n: 2, k: 6, y: 15, x: 15),
      red = (r: 3, s: 3),
      reads = [[n, k, y + r - 1, x + s - 1], [k, 0, r, s]], fill = [0.0, none]) : f32[2, 6, 15, 15] {_FMA}
    tensor.return(%0, %1)
  }}
}}"""
ROWS = f"""module @rows {{
  tensor.func @main(%x: f32[19, 100]) -> f32[19, 100], f32[19] {{
    %0 = tensor.reduce(%x, par = (i: 19),
      red = (j: 100),
      reads = [[i, j]], init = [-inf]) : f32[19] {_MAX_ACC}
    %1 = tensor.map(%x, %0, par = (i: 19, j: 100),
      reads = [[i, j], [i]]) : f32[19, 100] {_EXP_SUB}
    %2 = tensor.reduce(%1, par = (i: 19),
      red = (j: 100),
      reads = [[i, j]]) : f32[19] {_ADD_ACC}
    %3 = tensor.map(%1, %2, par = (i: 19, j: 100),
      reads = [[i, j], [i]]) : f32[19, 100] {_DIV}
    tensor.return(%3, %2)
  }}
}}"""
MAP = f"""module @map {{
  tensor.func @main(%x: f32[7, 12, 20], %y: f32[12]) -> f32[7, 12, 20], f32[20, 7, 12] {{
    %0 = tensor.map(%x, %y, par = (a: 7, b: 12, c: 20),
      reads = [[a, b, c], [b]]) : f32[7, 12, 20] {_BIAS_RELU}
    %1 = tensor.map(%x, par = (c: 20, a: 7, b: 12),
      reads = [[a, b, c]]) : f32[20, 7, 12] {{
      ^(%p: f32) scalar.yield(%p) }}
    tensor.return(%0, %1)
  }}
}}"""
_SUM = (
    '{ ^(%o: f32, %n: f32) %h = scalar.const(value = 0.5, dtype = "f32") : f32 '
    "%t = scalar.fma(%o, %h, %n) : f32 scalar.yield(%t) }"
)
GATHER = """module @gather {
  tensor.func @main(%x: f32[50, 7], %i: i64[4, 3]) -> f32[4, 3, 7], f32[4, 3, 7], f32[4] {
    %0 = tensor.gather(%x, %i, par = (a: 4, b: 3, c: 7), reads = [[a, b]], at = [i0, c],
      mode = "fill", fill_value = 2.5) : f32[4, 3, 7]
    %1 = tensor.map(%0, par = (a: 4, b: 3, c: 7), reads = [[a, b, c]]) : f32[4, 3, 7] {
      ^(%p: f32) %e = scalar.exp(%p) : f32 scalar.yield(%e) }
    %2 = tensor.gather(%x, %i, par = (a: 4, b: 3, c: 7), reads = [[a, b]], at = [i0 * 2 + 1, 6 - c],
      mode = "wrap") : f32[4, 3, 7]
    %3 = tensor.gather(%x, %i, par = (a: 4, b: 3), reads = [[a, b]], at = [i0, 0]) : f32[4, 3]
    %4 = tensor.reduce(%3, par = (a: 4), red = (b: 3), reads = [[a, b]], init = [-inf]) : f32[4] MAX
    tensor.return(%1, %2, %4)
  }
}""".replace("MAX", _MAX_ACC)
SCAN = f"""module @scan {{
  tensor.func @main(%x: f32[9, 50, 7]) -> f32[9, 50, 7], f32[9, 50, 7] {{
    %0 = tensor.scan(%x, par = (h: 9, i: 50, j: 7), reads = [[h, i, j]], dim = "i") : f32[9, 50, 7] {_SUM}
    %1 = tensor.scan(%x, par = (h: 9, i: 50, j: 7), reads = [[h, i, j]], dim = "j", init = -1.0,
      exclusive = true, reverse = true) : f32[9, 50, 7] {_SUM}
    tensor.return(%0, %1)
  }}
}}"""
SCATTER = f"""module @scatter {{
  tensor.func @main(%x: f32[50, 7], %u: f32[40, 5], %i: i64[40]) -> f32[50, 7], f32[50, 7] {{
    %0 = tensor.scatter(%x, %u, %i, par = (r: 40, c: 5), reads = [[r, c], [r]],
      at = [i0, c]) : f32[50, 7] {_SUM}
    %1 = tensor.scatter(%x, %u, %i, par = (r: 40, c: 5), reads = [[r, c], [r]],
      at = [i0, 6 - c]) : f32[50, 7] {_SUM}
    tensor.return(%0, %1)
  }}
}}"""
RECUR = """module @recur {
  tensor.func @main(%x: f32[3, 40, 4], %y: f32[4, 40, 40, 3]) -> f32[3, 40, 4] {
    %0 = tensor.recur(%x, %y, par = (a: 3, i: 40, b: 4), red = (t: 40), reads = [[a, i, b], [b, i, t, a]],
      dim = "i") : f32[3, 40, 4] {
      ^(%e: f32, %r: f32, %acc: f32) %h = scalar.const(value = 0.02, dtype = "f32") : f32
      %p = scalar.mul(%e, %r) : f32 %s = scalar.fma(%p, %h, %acc) : f32 %z = scalar.abs(%s) : f32
      scalar.yield(%z) }
    tensor.return(%0)
  }
}"""


def _dims(**extents: int) -> Pairs:
    return Pairs.of(extents)


def _contract(
    block: Pairs, thread: Pairs, step: Pairs, stages: int, staging: str, pad: int = 0
) -> dict[str, Attr]:
    return {
        "block": block,
        "thread": thread,
        "step": step,
        "stages": stages,
        "staging": staging,
        "pad": pad,
    }


@dataclass(frozen=True)
class Case:
    """A tensor-level program and the parameters forced on its kernels of one template (none: the model's)."""

    name: str
    text: str
    template: str
    params: dict[str, Attr] = field(default_factory=dict)


_SHARED_CONV = _dims(n=1, k=8, y=4, x=8), _dims(n=1, k=4, y=1, x=2), _dims(c=2)
CASES = (
    Case("contract-model", CONV, "contract"),
    Case("contract-shared", CONV, "contract", _contract(*_SHARED_CONV[:2], _dims(c=5), 1, "shared")),
    Case("contract-prefetch", CONV, "contract", _contract(*_SHARED_CONV[:2], _dims(c=1), 2, "shared", pad=1)),
    Case(
        "contract-direct",
        CONV,
        "contract",
        _contract(_dims(n=1, k=8, y=2, x=4), _dims(n=1, k=8, y=1, x=2), _dims(c=5), 1, "direct"),
    ),
    Case(
        "contract-runs",
        CONV,
        "contract",
        _contract(_dims(n=1, k=8, y=4, x=6), _dims(n=1, k=4, y=2, x=3), _dims(c=5), 1, "shared")
        | {"run": _dims(y=2, x=3)},
    ),
    Case(
        "contract-samples",
        PIXELS,
        "contract",
        _contract(_dims(n=6, k=12, p=4), _dims(n=1, k=4, p=4), _dims(c=4), 2, "shared") | {"run": _dims(p=4)},
    ),
    Case("matmul-model", MATMUL, "contract"),
    Case(
        "matmul-prefetch",
        MATMUL,
        "contract",
        _contract(_dims(m=16, k=16), _dims(m=2, k=4), _dims(c=8), 2, "shared"),
    ),
    Case(
        "matmul-cut-columns",  # 40 columns in tiles of 32
        MATMUL,
        "contract",
        _contract(_dims(m=16, k=32), _dims(m=2, k=8), _dims(c=8), 2, "shared"),
    ),
    Case("window-model", WINDOW, "window"),
    Case("window-one-output", WINDOW, "window", {"threads": 64, "outputs": 1}),
    Case("rows-model", ROWS, "rows"),
    Case("rows-tree", ROWS, "rows", {"threads_per_row": 32, "rows_per_block": 4, "vec": 4}),
    Case("rows-alone", ROWS, "rows", {"threads_per_row": 1, "rows_per_block": 32, "vec": 1}),
    Case("map-model", MAP, "map"),
    Case("map-wide", MAP, "map", {"threads": 32, "vec": 4, "items": 2}),
    Case("gather-model", GATHER, "map"),
    Case("gather-wide", GATHER, "map", {"threads": 32, "vec": 1, "items": 2}),
    Case("scan-model", SCAN, "scan"),
    Case("recur-model", RECUR, "recur"),
    Case("recur-alone", RECUR, "recur", {"threads": 1}),
    Case("recur-shared", RECUR, "recur", {"threads": 32}),
    Case("scatter-model", SCATTER, "scatter"),
    Case("scatter-owners", SCATTER, "scatter", {"threads": 64, "owners": 4}),
)


def prepared(case: Case, target: str) -> Module:
    """The case's program cut into kernels, with its parameters forced."""
    module = parse(case.text, where=case.name)
    rng = np.random.default_rng(7)
    weights = {
        str(op["name"]): rng.standard_normal(op.result.tensor.shape).astype(np.float32)
        for op in module.main.body.ops
        if op.name == "tensor.constant"
    }
    module = module.with_constants(Constants(weights))
    resolved = resolve_target(target)
    context = PassContext(target=str(resolved), hardware=resolved.hardware)
    module = run_pipeline(module, TENSOR.until(PACKING), context)
    if not case.params:
        return module
    forced = []
    for f in module.funcs:
        template = template_of(f)
        if template is not None and template.name == case.template:
            parameters = template.parameters.read(Pairs.of(case.params), f"parameters of {case.name}")
            f = with_decision(f, parameters=parameters)
        forced.append(f)
    return module.with_funcs(tuple(forced))


def values(rng: np.random.Generator, t: TensorType) -> np.ndarray:
    """Normal numbers, or indices of which some lie outside every tensor of the cases."""
    if t.dtype == "f32":
        return rng.standard_normal(t.shape).astype(np.float32)
    return rng.integers(-5, 60, t.shape).astype(np.int64)


def check(case: Case, target: str) -> float:
    """Relative error of the compiled case against the interpreter, on random inputs."""
    module = prepared(case, target)
    rng = np.random.default_rng(11)
    source = parse(case.text, constants=module.constants)
    inputs = [values(rng, p.tensor) for p in source.main.params]
    expected = tw.interpret(source, *inputs, precision="fp64")
    with tw.compile(module, target=target) as exe:
        got = exe(*inputs)
    return largest_error(got, expected)
