"""Attention and normalisations as tensor-level kernels of 16 bits, and a block of BERT as a graph."""

from __future__ import annotations

import math

import numpy as np
from chain_samples import ADD, DIV, EXP, FMA16, MAX, NARROW, body

from tilewright.ir import Attr, Constants, Func, Level, Module, TensorType, Value, parse, show
from tilewright.ir.builder import Builder
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import official_stages

#: maps behind the scores: by a number, an added mask of 16 bits, one of 32 bits
SCALED = (
    "%c1 = tensor.map(%s0, {s}, reads = [[{at}]]) : {t} {{ ^(%a: f32) %n = scalar.const(value = 0.25, "
    'dtype = "f32") : f32 %r = scalar.mul(%n, %a) : f32 scalar.yield(%r) }}'
)
MASKED = f"%s1 = tensor.map(%c1, %mask, {{s}}, reads = [[{{at}}], [MASK]]) : {{t}} {{{ADD}}}"
HALF = (
    '{ ^(%a: f32, %b: f16) %w = scalar.cast(%b, dtype = "f32") : f32 %r = scalar.add(%a, %w) : f32 '
    "scalar.yield(%r) }"
)
CHOSEN = (
    "%s1 = tensor.map(%seen, %c1, {s}, reads = [[m, k], [{at}]]) : {t} {{ ^(%b: bool, %a: f32) "
    '%n = scalar.const(value = -1e30, dtype = "f32") : f32 %r = scalar.select(%b, %a, %n) : f32 '
    "scalar.yield(%r) }}"
)


def attention(
    params: str = "%q: f16[6, 2, 8], %k: f16[10, 2, 8], %v: f16[10, 2, 16]",
    operands: tuple[str, str, str] = ("%q", "%k", "%v"),
    at: tuple[str, str, str] = ("m, h, c", "k, h, c", "k, h, e"),
    rows: str = "h: 2, m: 6",
    out: str = "h: 2, m: 6, e: 16",
    keys: int = 10,
    scores: str = "",
    last: str = "%s0",
    weights: str = "%d2",
    returned: str = "%d7",
) -> Func:
    """softmax(scores) v in one kernel; `at`: how q, k and v are read; `rows` and `out`: dimensions.

    scores: maps as text that turn %s0 = q k^T into `last`; {s}, {t} and {at} stand for the domain of the
    scores, their type and their index. weights: what is divided by the sum of the exponentials %d2.
    """
    sizes, names = (", ".join(d.split(": ")[i] for d in rows.split(", ")) for i in (1, 0))
    s, t, p = f"par = ({rows}, k: {keys})", f"f32[{sizes}, {keys}]", f"{names}, k"
    row = f"par = ({rows}), red = (k: {keys})"
    shape, index = (", ".join(d.split(": ")[i] for d in out.split(", ")) for i in (1, 0))
    last_type = {"%d7": f"f16[{shape}]", "%d6": f"f32[{shape}]"}[returned]
    return parse(f"""module @m {{ tensor.func @k({params}) -> {last_type} {{
    %s0 = tensor.contract({operands[0]}, {operands[1]}, {s}, red = (c: 8),
      reads = [[{at[0]}], [{at[1]}]]) : {t} {FMA16}
    {scores.format(s=s, t=t, at=p)}
    %d1 = tensor.reduce({last}, {row}, reads = [[{p}]], init = [-inf]) : f32[{sizes}] {MAX}
    %d2 = tensor.map({last}, %d1, {s}, reads = [[{p}], [{names}]]) : {t} {EXP}
    %d3 = tensor.reduce(%d2, {row}, reads = [[{p}]]) : f32[{sizes}] {ADD}
    %d4 = tensor.map({weights}, %d3, {s}, reads = [[{p}], [{names}]]) : {t} {DIV}
    %d5 = tensor.map(%d4, {s}, reads = [[{p}]]) : f16[{sizes}, {keys}] {NARROW}
    %d6 = tensor.contract(%d5, {operands[2]}, par = ({out}), red = (k: {keys}),
      reads = [[{p}], [{at[2]}]]) : f32[{shape}] {FMA16}
    %d7 = tensor.map(%d6, par = ({out}), reads = [[{index}]]) : f16[{shape}] {NARROW}
    tensor.return({returned})
  }} }}""")["k"]


def as_tf32(kernel: Func) -> Func:
    """The kernel with f32 where it has f16, and factors that may be rounded to TF32."""
    wide = parse(show(Module("m", (kernel,))).replace("f16", "f32"))[kernel.name]
    ops = (op.with_attrs(factors="tf32") if op.name == "tensor.contract" else op for op in wide.body.ops)
    return wide.with_body(wide.body.with_ops(tuple(ops)))


def masked(kind: str, at: str) -> str:
    """Maps that scale the scores and add a mask of f16 or f32 that is read at these indices."""
    text = MASKED.replace("MASK", at)
    return SCALED + "\n" + (text.replace("{" + ADD + "}", "{" + HALF + "}") if kind == "f16" else text)


def norm(
    kind: str, epsilon: float = 1e-5, count: float = 32.0, affine: str = "f32", out: str = "f32"
) -> Func:
    """Rows of 32 normalised, two results wide: `layer` subtracts the mean, `rms` does not."""
    number = f'%n = scalar.const(value = {count!r}, dtype = "f32") : f32'
    mean = body(f"{number} %r = scalar.div(%a, %n) : f32 scalar.yield(%r)", "a")
    square = body("%q = scalar.fma(%a, %a, %acc) : f32 scalar.yield(%q)", "a", "acc")
    apart = body("%d = scalar.sub(%a, %m) : f32 %q = scalar.fma(%d, %d, %acc) : f32 scalar.yield(%q)",
                 "a", "m", "acc")  # fmt: skip
    tiny = f'%e = scalar.const(value = {epsilon!r}, dtype = "f32") : f32 %s = scalar.add(%v, %e) : f32'
    rows = "par = (i: 6), red = (j: 32)"
    if kind == "rms":
        ops = f"""%v0 = tensor.reduce(%x, {rows}, reads = [[i, j]]) : f32[6] {square}
    %v1 = tensor.map(%v0, par = (i: 6), reads = [[i]]) : f32[6] {mean}
    %y = tensor.map(%x, %g, %v1, par = (i: 6, j: 32), reads = [[i, j], [j], [i]]) : f32[6, 32]
      {{ ^(%a: f32, %w: {affine}, %v: f32) {tiny} %t = scalar.rsqrt(%s) : f32 %c = scalar.mul(%a, %t) : f32
      %w32 = scalar.cast(%w, dtype = "f32") : f32 %r = scalar.mul(%w32, %c) : f32 scalar.yield(%r) }}"""
    else:
        ops = f"""%m0 = tensor.reduce(%x, {rows}, reads = [[i, j]]) : f32[6] {ADD}
    %m1 = tensor.map(%m0, par = (i: 6), reads = [[i]]) : f32[6] {mean}
    %v0 = tensor.reduce(%x, %m1, {rows}, reads = [[i, j], [i]]) : f32[6] {apart}
    %v1 = tensor.map(%v0, par = (i: 6), reads = [[i]]) : f32[6] {mean}
    %y = tensor.map(%x, %g, %b, %m1, %v1, par = (i: 6, j: 32),
      reads = [[i, j], [j], [j], [i], [i]]) : f32[6, 32]
      {{ ^(%a: f32, %w: {affine}, %z: {affine}, %m: f32, %v: f32) {tiny} %t = scalar.sqrt(%s) : f32
      %d = scalar.sub(%a, %m) : f32 %c = scalar.div(%d, %t) : f32 %w32 = scalar.cast(%w, dtype = "f32") : f32
      %z32 = scalar.cast(%z, dtype = "f32") : f32 %q = scalar.mul(%c, %w32) : f32
      %r = scalar.add(%q, %z32) : f32 scalar.yield(%r) }}"""
    end, result = "", "%y"
    if out == "f16":
        end, result = (
            f"%h = tensor.map(%y, par = (i: 6, j: 32), reads = [[i, j]]) : f16[6, 32] {NARROW}",
            "%h",
        )
    params = f"%x: f32[6, 32], %g: {affine}[32], %b: {affine}[32]"
    text = f"""module @m {{ tensor.func @k({params}) -> {out}[6, 32] {{
    {ops}
    {end}
    tensor.return({result})
  }} }}"""
    return parse(text)["k"]


def bert_block(
    batch: int = 1, tokens: int = 16, heads: int = 2, size: int = 8, *, tanh: bool = False
) -> Module:
    """One layer of BERT as a graph: attention with a mask of zeros, two norms, GELU with erf or tanh."""
    width = heads * size
    rng = np.random.default_rng(5)
    arrays: dict[str, np.ndarray] = {}
    b = Builder()

    def constant(array: np.ndarray) -> Value:
        name = f"c{len(arrays)}"
        arrays[name] = array.astype(np.float32)
        kind = TensorType("f32", array.shape)
        return b.emit("graph.constant", (), {"name": name}, types=(kind,))[0]

    def op(name: str, *operands: Value, **attrs: Attr) -> Value:
        return b.emit(f"graph.{name}", operands, attrs)[0]

    def number(value: float) -> Value:
        return constant(np.asarray(value))

    def linear(v: Value, units: int) -> Value:
        weight = constant(rng.standard_normal((units, v.tensor.shape[-1])) / 4)
        return op("add", op("dense", v, weight), constant(rng.standard_normal(units)))

    def norm_of(v: Value) -> Value:
        gamma, beta = (constant(rng.standard_normal(width)) for _ in range(2))
        return op("layer_norm", v, gamma, beta, axis=-1, epsilon=1e-12)

    def split(v: Value) -> Value:
        parts = op("reshape", v, newshape=(batch, tokens, heads, size))
        return op("transpose", parts, axes=(0, 2, 1, 3))

    x = Value(TensorType("f32", (batch, tokens, width)), "x")
    q, k, v = (split(linear(x, width)) for _ in range(3))
    scaled = op("multiply", op("matmul", q, k, transpose_b=True), number(1 / math.sqrt(size)))
    seen = op("add", scaled, constant(np.zeros((1, 1, 1, tokens))))
    mixed = op("transpose", op("matmul", op("softmax", seen, axis=-1), v), axes=(0, 2, 1, 3))
    x1 = norm_of(op("add", x, linear(op("reshape", mixed, newshape=(batch, tokens, width)), width)))
    hidden = linear(x1, 2 * width)
    if tanh:
        cube = op("multiply", op("multiply", hidden, hidden), hidden)
        inner = op("add", hidden, op("multiply", cube, number(0.044715)))
        bent = op("tanh", op("multiply", inner, number(math.sqrt(2 / math.pi))))
    else:
        bent = op("erf", op("multiply", hidden, number(math.sqrt(0.5))))
    gelu = op("multiply", op("multiply", hidden, number(0.5)), op("add", bent, number(1.0)))
    result = norm_of(op("add", x1, linear(gelu, width)))
    b.do("graph.return", result)
    main = Func(Level.GRAPH, "main", b.block((x,)), (result.type,))
    return Module("bert", (main,), (), Constants(arrays))


def lowered(module: Module, precision: str = "fp16") -> Module:
    """The kernels of a network for sm_90a without parameters, none of which is a chain."""
    stages = official_stages(Level.GRAPH, "cuda", precision).until("choose-parameters")
    apart = stages.replace("chain-kernels", "chain-kernels{when=never}")
    apart = apart.replace("chain-tiles", "chain-tiles{when=never}")
    return run_pipeline(module, apart.whole, PassContext(target="cuda:sm_90a"))
