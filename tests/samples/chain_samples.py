"""Programs whose kernels can become one chain, as tensor-level text, and helpers that run them."""

import numpy as np
from decision_samples import with_template

import tilewright as tw
from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, Ref, Value, interpret, parse, verify
from tilewright.ir.types import storage_dtype


def body(text: str, *params: str, dtype: str = "f32") -> str:
    names = ", ".join(f"%{p}: {dtype}" for p in params)
    return f"{{ ^({names}) {text} }}"


FMA = body("%m = scalar.fma(%a, %b, %acc) : f32 scalar.yield(%m)", "a", "b", "acc")
ADD = body("%m = scalar.add(%a, %acc) : f32 scalar.yield(%m)", "a", "acc")
MAX = body("%m = scalar.max(%a, %acc) : f32 scalar.yield(%m)", "a", "acc")
MUL = body("%m = scalar.mul(%a, %acc) : f32 scalar.yield(%m)", "a", "acc")
EXP = body("%t = scalar.sub(%a, %m) : f32 %e = scalar.exp(%t) : f32 scalar.yield(%e)", "a", "m")
DIV = body("%t = scalar.div(%a, %m) : f32 scalar.yield(%t)", "a", "m")
ZERO = '%z = scalar.const(value = 0.0, dtype = "f32") : f32'
RELU = body(f"{ZERO} %r = scalar.max(%t, %z) : f32 scalar.yield(%r)", "t")
SIGMOID = body(
    '%n = scalar.neg(%t) : f32 %e = scalar.exp(%n) : f32 %o = scalar.const(value = 1.0, dtype = "f32") : f32 '
    "%d = scalar.add(%e, %o) : f32 %q = scalar.div(%o, %d) : f32 scalar.yield(%q)",
    "t",
)
FMA16 = (
    '{ ^(%a: f16, %b: f16, %acc: f32) %x = scalar.cast(%a, dtype = "f32") : f32 '
    '%y = scalar.cast(%b, dtype = "f32") : f32 %m = scalar.fma(%x, %y, %acc) : f32 scalar.yield(%m) }'
)
NARROW = '{ ^(%t: f32) %h = scalar.cast(%t, dtype = "f16") : f16 scalar.yield(%h) }'


def attention(b: int, m: int, k: int, d: int, e: int) -> str:
    """softmax(q k^T * scale + mask) v, heads in the middle of q, k and v."""
    s, t = f"par = (z: 1, b: {b}, m: {m}, k: {k})", f"f32[1, {b}, {m}, {k}]"
    rows, row = f"par = (z: 1, b: {b}, m: {m}), red = (k: {k})", f"f32[1, {b}, {m}]"
    return f"""tensor.func @chain(%qq: f32[{m}, {b}, {d}], %kk: f32[{k}, {b}, {d}], %vv: f32[{k}, {b}, {e}],
      %scale: f32[], %mask: f32[{m}, {k}]) -> f32[{b}, {m}, {e}] {{
    %0 = tensor.contract(%qq, %kk, par = (b: {b}, m: {m}, k: {k}), red = (c: {d}),
      reads = [[m, b, c], [k, b, c]]) : f32[{b}, {m}, {k}] {FMA}
    %1 = tensor.map(%0, %scale, {s}, reads = [[b, m, k], []]) : {t} {MUL}
    %2 = tensor.map(%1, %mask, {s}, reads = [[z, b, m, k], [m, k]]) : {t} {ADD}
    %3 = tensor.reduce(%2, {rows}, reads = [[z, b, m, k]], init = [-inf]) : {row} {MAX}
    %4 = tensor.map(%2, %3, {s}, reads = [[z, b, m, k], [z, b, m]]) : {t} {EXP}
    %5 = tensor.reduce(%4, {rows}, reads = [[z, b, m, k]]) : {row} {ADD}
    %6 = tensor.map(%4, %5, {s}, reads = [[z, b, m, k], [z, b, m]]) : {t} {DIV}
    %7 = tensor.contract(%6, %vv, par = (b: {b}, m: {m}, e: {e}), red = (k: {k}),
      reads = [[0, b, m, k], [k, b, e]]) : f32[{b}, {m}, {e}] {FMA}
    tensor.return(%7)
  }}"""


def depthwise_pointwise(c: int, k: int, h: int, w: int, stride: int) -> str:
    """3x3 depthwise, bias, relu, pointwise, residual."""
    y, x = (h - 1) // stride + 1, (w - 1) // stride + 1
    par, t = f"par = (n: 1, c: {c}, y: {y}, x: {x})", f"f32[1, {c}, {y}, {x}]"
    out, u = f"par = (n: 1, k: {k}, y: {y}, x: {x})", f"f32[1, {k}, {y}, {x}]"
    return f"""tensor.func @chain(%in: f32[1, {c}, {h}, {w}], %w: f32[{c}, 1, 3, 3], %bias: f32[{c}],
      %w2: f32[{k}, {c}], %res: {u}) -> {u} {{
    %0 = tensor.window(%in, %w, {par}, red = (r: 3, s: 3),
      reads = [[n, c, y * {stride} + r - 1, x * {stride} + s - 1], [c, 0, r, s]],
      fill = [0.0, none]) : {t} {FMA}
    %1 = tensor.map(%0, %bias, {par}, reads = [[n, c, y, x], [c]]) : {t} {ADD}
    %2 = tensor.map(%1, {par}, reads = [[n, c, y, x]]) : {t} {RELU}
    %3 = tensor.contract(%2, %w2, {out}, red = (c: {c}), reads = [[n, c, y, x], [k, c]]) : {u} {FMA}
    %4 = tensor.map(%3, %res, {out}, reads = [[n, k, y, x], [n, k, y, x]]) : {u} {ADD}
    tensor.return(%4)
  }}"""


def expanded(c: int, k: int, h: int, w: int) -> str:
    """A 1x1 convolution written with a window of one point, then a 3x3 depthwise one over the same domain."""
    par, t = f"par = (n: 1, k: {k}, y: {h}, x: {w})", f"f32[1, {k}, {h}, {w}]"
    return f"""tensor.func @chain(%in: f32[1, {c}, {h}, {w}], %w: f32[{k}, {c}, 1, 1],
      %w2: f32[{k}, 1, 3, 3]) -> {t} {{
    %0 = tensor.contract(%in, %w, {par}, red = (c: {c}, r: 1, s: 1),
      reads = [[n, c, y + r, x + s], [k, c, r, s]]) : {t} {FMA}
    %1 = tensor.map(%0, {par}, reads = [[n, k, y, x]]) : {t} {RELU}
    %2 = tensor.window(%1, %w2, {par}, red = (r: 3, s: 3),
      reads = [[n, k, y + r - 1, x + s - 1], [k, 0, r, s]], fill = [0.0, none]) : {t} {FMA}
    tensor.return(%2)
  }}"""


def two_convolutions(c: int, k: int, last: int, h: int, w: int, results: str = "%2") -> str:
    """3x3 convolution, relu, 3x3 convolution."""
    par, out = f"par = (n: 2, k: {k}, y: {h}, x: {w})", f"par = (n: 2, k: {last}, y: {h}, x: {w})"
    t, u = f"f32[2, {k}, {h}, {w}]", f"f32[2, {last}, {h}, {w}]"
    at = "reads = [[n, c, y + r - 1, x + s - 1], [k, c, r, s]], fill = [0.0, none]"
    types = u if results == "%2" else f"{u}, {t}"
    return f"""tensor.func @chain(%in: f32[2, {c}, {h}, {w}], %w: f32[{k}, {c}, 3, 3],
      %w2: f32[{last}, {k}, 3, 3]) -> {types} {{
    %0 = tensor.contract(%in, %w, {par}, red = (c: {c}, r: 3, s: 3), {at}) : {t} {FMA}
    %1 = tensor.map(%0, {par}, reads = [[n, k, y, x]]) : {t} {RELU}
    %2 = tensor.contract(%1, %w2, {out}, red = (c: {k}, r: 3, s: 3), {at}) : {u} {FMA}
    tensor.return({results})
  }}"""


def convolution_pool(c: int, k: int, h: int, w: int) -> str:
    """3x3 convolution, 3x3 max pooling of stride 2 with padding."""
    y, x = (h - 1) // 2 + 1, (w - 1) // 2 + 1
    t, u = f"f32[2, {k}, {h}, {w}]", f"f32[2, {k}, {y}, {x}]"
    return f"""tensor.func @chain(%in: f32[2, {c}, {h}, {w}], %w: f32[{k}, {c}, 3, 3]) -> {u} {{
    %0 = tensor.contract(%in, %w, par = (n: 2, k: {k}, y: {h}, x: {w}), red = (c: {c}, r: 3, s: 3),
      reads = [[n, c, y + r - 1, x + s - 1], [k, c, r, s]], fill = [0.0, none]) : {t} {FMA}
    %1 = tensor.window(%0, par = (n: 2, k: {k}, y: {y}, x: {x}), red = (r: 3, s: 3),
      reads = [[n, k, y * 2 + r - 1, x * 2 + s - 1]], fill = [-inf],
      init = [-inf]) : {u} {MAX}
    tensor.return(%1)
  }}"""


def squeeze_excite(c: int, r: int, h: int, w: int) -> str:
    """Global average pooling, two products, their activations."""
    inner, outer = f"par = (n: 2, k: {r}, y: 1, x: 1)", f"par = (n: 2, k: {c}, y: 1, x: 1)"
    t, u = f"f32[2, {r}, 1, 1]", f"f32[2, {c}, 1, 1]"
    return f"""tensor.func @chain(%in: f32[2, {c}, {h}, {w}], %w: f32[{r}, {c}], %b1: f32[{r}],
      %w2: f32[{c}, {r}], %b2: f32[{c}]) -> {u} {{
    %0 = tensor.reduce(%in, par = (n: 2, c: {c}, y: 1, x: 1), red = (r: {h}, s: {w}),
      reads = [[n, c, r, s]]) : {u} {ADD}
    %1 = tensor.contract(%0, %w, {inner}, red = (c: {c}), reads = [[n, c, y, x], [k, c]]) : {t} {FMA}
    %2 = tensor.map(%1, %b1, {inner}, reads = [[n, k, y, x], [k]]) : {t} {ADD}
    %3 = tensor.map(%2, {inner}, reads = [[n, k, y, x]]) : {t} {SIGMOID}
    %4 = tensor.contract(%3, %w2, {outer}, red = (c: {r}), reads = [[n, c, y, x], [k, c]]) : {u} {FMA}
    %5 = tensor.map(%4, %b2, {outer}, reads = [[n, k, y, x], [k]]) : {u} {ADD}
    %6 = tensor.map(%5, {outer}, reads = [[n, k, y, x]]) : {u} {SIGMOID}
    tensor.return(%6)
  }}"""


def two_products(m: int, c: int, h: int, k: int) -> str:
    """Product, bias, sigmoid, product."""
    t, u = f"f32[{m}, {h}]", f"f32[{m}, {k}]"
    return f"""tensor.func @chain(%in: f32[{m}, {c}], %w: f32[{h}, {c}], %b1: f32[{h}],
      %w2: f32[{k}, {h}]) -> {u} {{
    %0 = tensor.contract(%in, %w, par = (m: {m}, k: {h}), red = (c: {c}),
      reads = [[m, c], [k, c]]) : {t} {FMA}
    %1 = tensor.map(%0, %b1, par = (m: {m}, k: {h}), reads = [[m, k], [k]]) : {t} {ADD}
    %2 = tensor.map(%1, par = (m: {m}, k: {h}), reads = [[m, k]]) : {t} {SIGMOID}
    %3 = tensor.contract(%2, %w2, par = (m: {m}, k: {k}), red = (c: {h}),
      reads = [[m, c], [k, c]]) : {u} {FMA}
    tensor.return(%3)
  }}"""


def halves(m: int, c: int, h: int, k: int) -> str:
    """Two products stored in 16 bits and accumulated in 32."""
    return f"""tensor.func @chain(%in: f16[{m}, {c}], %w: f16[{h}, {c}],
      %w2: f16[{k}, {h}]) -> f16[{m}, {k}] {{
    %0 = tensor.contract(%in, %w, par = (m: {m}, k: {h}), red = (c: {c}),
      reads = [[m, c], [k, c]]) : f32[{m}, {h}] {FMA16}
    %1 = tensor.map(%0, par = (m: {m}, k: {h}), reads = [[m, k]]) : f16[{m}, {h}] {NARROW}
    %2 = tensor.contract(%1, %w2, par = (m: {m}, k: {k}), red = (c: {h}),
      reads = [[m, c], [k, c]]) : f32[{m}, {k}] {FMA16}
    %3 = tensor.map(%2, par = (m: {m}, k: {k}), reads = [[m, k]]) : f16[{m}, {k}] {NARROW}
    tensor.return(%3)
  }}"""


ADD16 = "{ ^(%t: f16, %b: f16) %s = scalar.add(%t, %b) : f16 scalar.yield(%s) }"
CLIP16 = (
    '{ ^(%t: f16) %z = scalar.const(value = 0.0, dtype = "f16") : f16 %m = scalar.max(%t, %z) : f16 '
    '%o = scalar.const(value = 6.0, dtype = "f16") : f16 %r = scalar.min(%m, %o) : f16 scalar.yield(%r) }'
)


def inverted_residual(
    n: int, h: int, w: int, c: int, hidden: int, k: int, *, stride: int = 1, taps: int = 3,
    parts: str = "epr", dtype: str = "f16",
) -> str:  # fmt: skip
    """Expand, window of each channel, project, channels last in 16 bits; parts: e, p and r (residual) of it.

    Weights of the products lie in rows of the channel summed over.
    """
    y, x, around = (h - 1) // stride + 1, (w - 1) // stride + 1, taps // 2
    wide, small = (
        f"par = (n: {n}, y: {h}, x: {w}, k: {hidden})",
        f"par = (n: {n}, y: {y}, x: {x}, k: {hidden})",
    )
    out, at = f"par = (n: {n}, y: {y}, x: {x}, k: {k})", "reads = [[n, y, x, k]"
    t, s, u = f"[{n}, {h}, {w}, {hidden}]", f"[{n}, {y}, {x}, {hidden}]", f"[{n}, {y}, {x}, {k}]"
    ops, params = [], [f"%in: f16[{n}, {h}, {w}, {c if 'e' in parts else hidden}]"]
    last = "in"
    if "e" in parts:
        params += [f"%we: f16[{hidden}, {c}, 1, 1]", f"%be: f16[{hidden}]"]
        ops.append(
            f"%0 = tensor.contract(%in, %we, {wide}, red = (c: {c}, r: 1, s: 1), "
            f"reads = [[n, y + r, x + s, c], [k, c, r, s]], fill = [0.0, none]) : f32{t} {FMA16}"
            f"%1 = tensor.map(%0, {wide}, {at}]) : f16{t} {NARROW}"
            f"%2 = tensor.map(%1, %be, {wide}, {at}, [k]]) : f16{t} {ADD16}"
            f"%3 = tensor.map(%2, {wide}, {at}]) : f16{t} {CLIP16}"
        )
        last = "3"
    params += [f"%wd: f16[1, {taps}, {taps}, {hidden}]", f"%bd: f16[{hidden}]"]
    ops.append(
        f"%4 = tensor.window(%{last}, %wd, {small}, red = (r: {taps}, s: {taps}), reads = [[n, "
        f"y * {stride} + r - {around}, x * {stride} + s - {around}, k], [0, r, s, k]], "
        f"fill = [0.0, none]) : f32{s} {FMA16}"
        f"%5 = tensor.map(%4, {small}, {at}]) : f16{s} {NARROW}"
        f"%6 = tensor.map(%5, %bd, {small}, {at}, [k]]) : f16{s} {ADD16}"
        f"%7 = tensor.map(%6, {small}, {at}]) : f16{s} {CLIP16}"
    )
    result, types = "%7", f"f16{s}"
    if "p" in parts:
        params += [f"%wp: f16[{k}, {hidden}]"]
        ops.append(
            f"%8 = tensor.contract(%7, %wp, {out}, red = (c: {hidden}), reads = [[n, y, x, c], [k, c]]) "
            f": f32{u} {FMA16}"
            f"%9 = tensor.map(%8, {out}, {at}]) : f16{u} {NARROW}"
        )
        result, types = "%9", f"f16{u}"
    if "r" in parts:
        ops.append(f"%10 = tensor.map(%9, %in, {out}, {at}, [n, y, x, k]]) : f16{u} {ADD16}")
        result = "%10"
    ops.append(f"tensor.return({result})")
    lines = "\n    ".join(ops)
    text = f"tensor.func @chain({', '.join(params)}) -> {types} {{\n    {lines}\n  }}"
    return text.replace("f16", dtype)


def bottleneck(n: int, h: int, w: int, c: int, mid: int, *, dense: int = 3) -> str:
    """Reduce, a dense window, expand with residual and relu, channels last in 16 bits."""
    around, wide = dense // 2, f"par = (n: {n}, y: {h}, x: {w}, k: {mid})"
    out, at = f"par = (n: {n}, y: {h}, x: {w}, k: {c})", "reads = [[n, y, x, k]"
    t, u = f"[{n}, {h}, {w}, {mid}]", f"[{n}, {h}, {w}, {c}]"
    return f"""tensor.func @chain(%in: f16{u}, %w1: f16[{mid}, {c}], %b1: f16[{mid}],
      %w2: f16[{dense}, {dense}, {mid}, {mid}], %b2: f16[{mid}], %w3: f16[{mid}, {c}]) -> f16{u} {{
    %0 = tensor.contract(%in, %w1, {wide}, red = (c: {c}), reads = [[n, y, x, c], [k, c]]) : f32{t} {FMA16}
    %1 = tensor.map(%0, {wide}, {at}]) : f16{t} {NARROW}
    %2 = tensor.map(%1, %b1, {wide}, {at}, [k]]) : f16{t} {ADD16}
    %3 = tensor.map(%2, {wide}, {at}]) : f16{t} {CLIP16}
    %4 = tensor.contract(%3, %w2, {wide}, red = (c: {mid}, r: {dense}, s: {dense}), reads = [[n,
      y + r - {around}, x + s - {around}, c], [r, s, k, c]], fill = [0.0, none]) : f32{t} {FMA16}
    %5 = tensor.map(%4, {wide}, {at}]) : f16{t} {NARROW}
    %6 = tensor.map(%5, %b2, {wide}, {at}, [k]]) : f16{t} {ADD16}
    %7 = tensor.map(%6, {wide}, {at}]) : f16{t} {CLIP16}
    %8 = tensor.contract(%7, %w3, {out}, red = (c: {mid}), reads = [[n, y, x, c], [c, k]]) : f32{u} {FMA16}
    %9 = tensor.map(%8, {out}, {at}]) : f16{u} {NARROW}
    %10 = tensor.map(%9, %in, {out}, {at}, [n, y, x, k]]) : f16{u} {ADD16}
    tensor.return(%10)
  }}"""


def called(kernel: str) -> Module:
    """A module whose @main calls the kernel."""
    m = parse("module @m { " + kernel + " }")
    verify(m)
    (k,) = m.funcs
    b = Builder()
    params = tuple(Value(p.type, p.hint) for p in k.params)
    results = b.emit("tensor.call", params, {"callee": Ref(k.name)}, types=list(k.result_types))
    b.append(Op("tensor.return", results))
    return m.with_funcs((k, Func(Level.TENSOR, "main", b.block(params), k.result_types)))


def flat(kernel: str) -> Module:
    """A module whose @main is the kernel's body: passes decide what becomes a kernel."""
    return parse("module @m { " + kernel.replace("@chain", "@main") + " }")


def chained(kernel: str, block: dict[str, int], threads: int, lanes: int, stage_bytes: int = 2048) -> Module:
    """The called kernel with forced chain parameters."""
    m = called(kernel)
    params = {"block": Pairs.of(block), "threads": threads, "lanes": lanes, "stage_bytes": stage_bytes}
    return m.with_funcs((with_template(m.funcs[0], "chain", Pairs.of(params)), m.funcs[1]))


def with_constants(m: Module, names: tuple[str, ...], seed: int = 1) -> Module:
    """A flat module in which these parameters of @main are random constants."""
    rng, main = np.random.default_rng(seed), m.main
    taken = [p for p in main.params if p.hint in names]
    ops = [Op("tensor.constant", (), (("name", p.hint),), (p,)) for p in taken]
    arrays = {
        p.hint: (0.5 * rng.standard_normal(p.tensor.shape)).astype(storage_dtype(p.tensor.dtype))
        for p in taken
    }
    params = tuple(p for p in main.params if p not in taken)
    body = Block(params, (*ops, *main.body.ops))
    return m.with_funcs((main.with_body(body),)).with_constants(m.constants.updated(arrays))


def chained_tiles(kernel: str, block: dict[str, int], part: int, warps: int) -> Module:
    """The called kernel as a chain on tensor cores with forced parameters."""
    m = called(kernel)
    params = {"block": Pairs.of(block), "part": part, "warps": warps}
    return m.with_funcs((with_template(m.funcs[0], "chain_tiles", Pairs.of(params)), m.funcs[1]))


def inputs_of(m: Module, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [(p.tensor.shape, storage_dtype(p.tensor.dtype)) for p in m.main.params]
    return [np.asarray(rng.standard_normal(s) * 0.5).astype(d) for s, d in shapes]


def error(m: Module, reference: Module, target: str, seed: int = 0) -> float:
    """Largest difference to the interpreter's results, relative to the largest of them."""
    given = inputs_of(m, seed)
    wanted = interpret(reference, *given)
    with tw.compile(m, target, progress=False) as exe:
        got = exe(*given)
    got = list(got) if isinstance(got, (list, tuple)) else [got]
    pairs = [(np.asarray(g, np.float64), np.asarray(w, np.float64)) for g, w in zip(got, wanted, strict=True)]
    return max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in pairs)


def kernel_body(m: Module) -> Block:
    """Ops of the first function that is not @main."""
    return next(f for f in m.funcs if f.name != "main").body
