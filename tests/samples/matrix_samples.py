"""Tensor-level products with epilogues, their tensor-core kernels, and what they should give in float64."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from codegen_samples import run
from decision_samples import with_template

from tilewright.codegen import emit_cuda
from tilewright.ir import Builder, Func, Level, Module, Op, Ref, Value, parse, verify
from tilewright.ir.float_pieces import PIECES, piece_of
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters, MatrixTile, Warps
from tilewright.passes.kernels.matrix.view import MatrixView, matrix_view

THREAD = "simplify-thread, vectorise{max_bytes=16}, simplify-thread, thread-dce, place-barriers"
CTX = PassContext(target="cuda:sm_90a", verify_each=True, reproducer_folder=None)
#: largest error over the largest value, by dtype of the factors
ERRORS = {"f16": 1.5e-3, "bf16": 1e-2, "f32": 2e-3}


def product(
    dtype: str,
    shapes: Sequence[str],
    par: str,
    red: str,
    reads: Sequence[str],
    *,
    fill: str = "[none, none]",
    result: str = "f32",
    epilogue: str = "",
    extra: Sequence[str] = (),
    before: str = "",
    given: str = "",
    arithmetic: str = "tf32",
) -> Func:
    """A kernel around one contraction of %x and %w into %p; `epilogue` ends in %y.

    arithmetic: what float32 factors may do. `before` makes %x of the parameter %a, whose type is `given`.
    """
    sizes = ", ".join(part.split(":")[1].strip() for part in par.split(","))
    factors = f', factors = "{arithmetic}"' if dtype == "f32" else ""
    casts = [f'%{wide} = scalar.cast(%{narrow}, dtype = "f32") : f32' for wide, narrow in ("us", "vt")]
    widen = "" if dtype == "f32" else " ".join(casts)
    first, second = ("%s", "%t") if dtype == "f32" else ("%u", "%v")
    first_param = f"%a: {given}" if before else f"%x: {dtype}[{shapes[0]}]"
    params = [first_param, f"%w: {dtype}[{shapes[1]}]", *extra]
    out = "%y" if epilogue else "%p"
    text = f"""module @m {{ tensor.func @k({", ".join(params)}) -> {result}[{sizes}] {{
      {before}
      %p = tensor.contract(%x, %w, par = ({par}), red = ({red}), reads = [{reads[0]}, {reads[1]}],
                           fill = {fill}{factors}) : f32[{sizes}] {{
        ^(%s: {dtype}, %t: {dtype}, %sum: f32)
        {widen}
        %r = scalar.fma({first}, {second}, %sum) : f32
        scalar.yield(%r)
      }}
      {epilogue}
      tensor.return({out})
    }} }}"""
    module = parse(text)
    verify(module)
    return module.funcs[0]


def contraction(kernel: Func) -> Op:
    return next(op for op in kernel.body.ops if op.name == "tensor.contract")


def view_of(kernel: Func) -> MatrixView:
    view = matrix_view(kernel, contraction(kernel))
    assert view is not None
    return view


def matrix_parameters(
    m: int, n: int, k: int, warps_m: int, warps_n: int, stages: int, channel: str = "c",
    *, raster: int = 1, warps_k: int = 1, engine: Literal["mma", "wgmma"] = "mma",
) -> MatrixParameters:  # fmt: skip
    """Parameters of a tensor-core kernel by their numbers."""
    warps = Warps(warps_m, warps_n, warps_k)
    return MatrixParameters(MatrixTile(m, n, k), warps, stages, channel, raster, engine)


def planned(kernel: Func, plan: MatrixParameters) -> Func:
    """The thread-level kernel with these parameters, after the usual passes."""
    thread = lower_matrix(with_template(kernel, "matrix", plan))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


def lowered(
    kernel: Func, *tiles: int, raster: int = 1, warps_k: int = 1, engine: Literal["mma", "wgmma"] = "mma"
) -> Func:
    """The thread-level kernel with a plan of tiles m, n, k, warps m, n and stages, after the usual passes."""
    channel = view_of(kernel).channel
    plan = matrix_parameters(*tiles, channel, raster=raster, warps_k=warps_k, engine=engine)
    return planned(kernel, plan)


def stored(kernel: Func) -> Func:
    """The kernel whose two factors are stored in pieces, which are its last parameters."""
    params = tuple(Value(p.type) for p in kernel.params)
    b = Builder()
    results = b.emit("tensor.call", params, {"callee": Ref(kernel.name)}, types=kernel.result_types)
    b.do("tensor.return", *results)
    main = Func(Level.TENSOR, "main", b.block(params), kernel.result_types)
    module = run_pipeline(Module("m", (kernel, main)), Pipeline.parse("store-pieces{when=always}"), CTX)
    return next(f for f in module.funcs if f.name == kernel.name)


def split_of(*arrays: np.ndarray) -> list[np.ndarray]:
    """The pieces of arrays, those of each one after the other."""
    return [piece_of(x, number) for x in arrays for number in range(PIECES)]


def inputs_of(kernel: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(len(kernel.body.ops))
    return [
        rng.standard_normal(p.tensor.shape, dtype=np.float32).astype(storage_dtype(p.tensor.dtype))
        for p in kernel.params
    ]


def emulated(
    kernel: Func,
    inputs: Sequence[np.ndarray],
    *tiles: int,
    raster: int = 1,
    warps_k: int = 1,
    engine: str = "mma",
) -> np.ndarray:
    """The kernel's result on the emulator, in float64."""
    func = lowered(kernel, *tiles, raster=raster, warps_k=warps_k, engine=engine)
    (got,) = run(func, "emulator", inputs).values()
    return got.astype(np.float64)


def assert_close(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= ERRORS[dtype] * np.abs(want).max()


def source(func: Func) -> str:
    return emit_cuda(func).source


def gemm(dtype: str, m: int, n: int, k: int, first: str = "mc", second: str = "nc", batch: int = 0, **more):
    """C[m, n] of factors whose dimensions lie in memory in these orders."""
    sizes = {"m": m, "n": n, "c": k, "b": batch}
    orders = [("b" if batch else "") + order for order in (first, second)]
    shapes = [", ".join(str(sizes[d]) for d in order) for order in orders]
    par = (f"b: {batch}, " if batch else "") + f"m: {m}, n: {n}"
    return product(dtype, shapes, par, f"c: {k}", [f"[{', '.join(order)}]" for order in orders], **more)


BIAS = """%y = tensor.map(%p, %bias, %res, par = (PAR), reads = [[AT], [COLUMN], [AT]]) : OUT[SIZES] {
  ^(%1: f32, %2: f32, %3: OUT)
  %4 = scalar.add(%1, %2) : f32
  %5 = scalar.cast(%3, dtype = "f32") : f32
  %6 = scalar.add(%4, %5) : f32
  %7 = scalar.const(value = 0.0, dtype = "f32") : f32
  %8 = scalar.max(%6, %7) : f32
  %9 = scalar.cast(%8, dtype = "OUT") : OUT
  scalar.yield(%9)
}"""


def convolution(
    dtype: str, n: int, hw: tuple[int, int], c: int, k: int, f: int, stride: int, layout: str, **more
):
    """A convolution with bias, residual and ReLU, in NCHW or NHWC."""
    h, w = hw
    pad, oh, ow = f // 2, (h - 1) // stride + 1, (w - 1) // stride + 1
    sizes = {"n": n, "y": oh, "x": ow, "k": k}
    order = "nkyx" if layout == "NCHW" else "nyxk"
    y, x = f"y * {stride} + r - {pad}", f"x * {stride} + s - {pad}"
    par = ", ".join(f"{d}: {sizes[d]}" for d in order)
    image = (f"{n}, {h}, {w}, {c}", f"[n, {y}, {x}, c]")
    if layout == "NCHW":
        image = (f"{n}, {c}, {h}, {w}", f"[n, c, {y}, {x}]")
    text = BIAS.replace("PAR", par).replace("AT", ", ".join(order)).replace("COLUMN", "k")
    text = text.replace("OUT", dtype)
    if dtype == "f32":
        text = text.replace('%5 = scalar.cast(%3, dtype = "f32") : f32', "").replace("%5", "%3")
        text = text.replace('%9 = scalar.cast(%8, dtype = "f32") : f32', "").replace("%9", "%8")
    out = ", ".join(str(sizes[d]) for d in order)
    return product(
        dtype, (image[0], f"{f}, {f}, {k}, {c}"), par, f"c: {c}, r: {f}, s: {f}",
        (image[1], "[r, s, k, c]"), fill="[0.0, none]" if f > 1 else "[none, none]", result=dtype,
        epilogue=text.replace("SIZES", out), extra=(f"%bias: f32[{k}]", f"%res: {dtype}[{out}]"),
        **more,
    )  # fmt: skip


def convolved(x, w, bias, res, f, stride, layout):
    x, w, bias, res = (v.astype(np.float64) for v in (x, w, bias, res))
    if layout == "NCHW":
        x, res = x.transpose(0, 2, 3, 1), res.transpose(0, 2, 3, 1)
    pad = f // 2
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    total = np.zeros(res.shape)
    for r in range(f):
        for s in range(f):
            ends = [start + (n - 1) * stride + 1 for start, n in zip((r, s), res.shape[1:3], strict=True)]
            total += padded[:, r : ends[0] : stride, s : ends[1] : stride] @ w[r, s].T
    out = np.maximum(total + bias + res, 0)
    return out.transpose(0, 3, 1, 2) if layout == "NCHW" else out


CAST = """%x = tensor.map(%a, par = (m: 24, c: 64), reads = [[m, c]]) : f16[24, 64] {
  ^(%1: f32)
  %2 = scalar.cast(%1, dtype = "f16") : f16
  scalar.yield(%2)
}"""


def check_orders(
    emulated: Callable[[Func, list[np.ndarray], int], np.ndarray],
    dtype: str,
    orders: tuple[str, str],
    size: tuple[int, ...],
) -> None:
    """A product of factors in these orders of dimensions is right, with the same bits for two seeds.

    emulated: runs a kernel on its inputs, in the order of threads of a seed.
    """
    kernel = gemm(dtype, *size, *orders)
    inputs = inputs_of(kernel)
    a, b = (
        v.astype(np.float64) if o[1] == "c" else v.astype(np.float64).T
        for v, o in zip(inputs, orders, strict=True)
    )
    first, again = (emulated(kernel, inputs, seed) for seed in (1, 5))
    assert_close(first, a @ b.T, dtype)
    np.testing.assert_array_equal(first, again)
