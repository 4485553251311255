"""Tensor-level products with epilogues, their tensor-core kernels, and what they should give in float64."""

from collections.abc import Sequence

import numpy as np
from codegen_samples import run

from tilewright.codegen import emit_cuda
from tilewright.ir import Func, Module, Op, parse, verify
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.lower.skeletons.matrix import lower_matrix
from tilewright.passes.lower.skeletons.matrix_plan import MatrixPlan, MatrixView, matrix_view

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
) -> Func:
    """A kernel around one contraction of %x and %w into %p; `epilogue` ends in %y.

    `before` makes %x of the parameter %a, whose type is `given`.
    """
    sizes = ", ".join(part.split(":")[1].strip() for part in par.split(","))
    factors = ', factors = "tf32"' if dtype == "f32" else ""
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


def lowered(kernel: Func, *tiles: int, raster: int = 1, warps_k: int = 1) -> Func:
    """The thread-level kernel with a plan of tiles m, n, k, warps m, n and stages, after the usual passes."""
    plan = MatrixPlan(*tiles, channel=view_of(kernel).channel, raster=raster, warps_k=warps_k)
    thread = lower_matrix(kernel.with_attrs(skeleton="matrix", params=plan.params()))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


def inputs_of(kernel: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(len(kernel.body.ops))
    return [
        rng.standard_normal(p.tensor.shape, dtype=np.float32).astype(storage_dtype(p.tensor.dtype))
        for p in kernel.params
    ]


def emulated(
    kernel: Func, inputs: Sequence[np.ndarray], *tiles: int, raster: int = 1, warps_k: int = 1
) -> np.ndarray:
    """The kernel's result on the emulator, in float64."""
    (got,) = run(lowered(kernel, *tiles, raster=raster, warps_k=warps_k), "emulator", inputs).values()
    return got.astype(np.float64)


def assert_close(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= ERRORS[dtype] * np.abs(want).max()


def source(func: Func) -> str:
    return emit_cuda(func).source
