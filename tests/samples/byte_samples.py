"""Kernels around products of bytes, signed or not, and what goes into them."""

import numpy as np

from tilewright.ir import Func, parse, verify
from tilewright.ir.types import storage_dtype


def product(
    shapes,
    par,
    red,
    reads,
    *,
    init=0,
    fill="[none, none]",
    sums="i32",
    result="",
    epilogue="",
    dtypes=("i8", "i8"),
) -> Func:
    """A kernel around one contraction of bytes into `sums`; `epilogue` makes %y of %p."""
    sizes = ", ".join(part.split(":")[1].strip() for part in par.split(","))
    given = f"%x: {dtypes[0]}[{shapes[0]}], %w: {dtypes[1]}[{shapes[1]}]"
    text = f"""module @m {{ tensor.func @k({given}) -> {result or sums}[{sizes}] {{
      %p = tensor.contract(%x, %w, par = ({par}), red = ({red}), reads = [{reads[0]}, {reads[1]}],
                           init = [{init}], fill = {fill}) : {sums}[{sizes}] {{
        ^(%s: {dtypes[0]}, %t: {dtypes[1]}, %sum: {sums})
        %u = scalar.cast(%s, dtype = "{sums}") : {sums}
        %v = scalar.cast(%t, dtype = "{sums}") : {sums}
        %r = scalar.fma(%u, %v, %sum) : {sums}
        scalar.yield(%r)
      }}
      {epilogue}
      tensor.return({"%y" if epilogue else "%p"})
    }} }}"""
    module = parse(text)
    verify(module)
    return module.funcs[0]


def gemm(m, n, k, first="mc", second="nc", **more) -> Func:
    sizes = {"m": m, "n": n, "c": k}
    shapes = [", ".join(str(sizes[d]) for d in order) for order in (first, second)]
    reads = [f"[{', '.join(order)}]" for order in (first, second)]
    return product(shapes, f"m: {m}, n: {n}", f"c: {k}", reads, **more)


def bytes_of(kernel, *, extreme=False):
    """Random factors, or those of the largest size."""
    rng = np.random.default_rng(7)
    drawn = []
    for p in kernel.params:
        info = np.iinfo(storage_dtype(p.tensor.dtype))
        largest = max(info.min, info.max, key=abs)
        numbers = rng.integers(info.min, info.max + 1, p.tensor.shape)
        drawn.append((np.full(p.tensor.shape, largest) if extreme else numbers).astype(info.dtype))
    return drawn


def requantised(par: str, at: str, dtype: str = "i8") -> str:
    """An epilogue that scales sums, rounds halves to even, and saturates."""
    sizes = ", ".join(part.split(":")[1].strip() for part in par.split(","))
    low, high = (-128, 127) if dtype == "i8" else (0, 255)
    text = REQUANTISED.replace("SIZES", par).replace("AT", at).replace("RESULT", f"{dtype}[{sizes}]")
    return text.replace("LOW", f"{low}.0").replace("HIGH", f"{high}.0").replace("BYTE", dtype)


REQUANTISED = """%y = tensor.map(%p, par = (SIZES), reads = [[AT]]) : RESULT {
  ^(%1: i32)
  %2 = scalar.cast(%1, dtype = "f32") : f32
  %3 = scalar.const(value = 0.001, dtype = "f32") : f32
  %4 = scalar.mul(%2, %3) : f32
  %5 = scalar.round(%4) : f32
  %6 = scalar.const(value = HIGH, dtype = "f32") : f32
  %7 = scalar.min(%5, %6) : f32
  %8 = scalar.const(value = LOW, dtype = "f32") : f32
  %9 = scalar.max(%7, %8) : f32
  %10 = scalar.cast(%9, dtype = "BYTE") : BYTE
  scalar.yield(%10)
}"""
