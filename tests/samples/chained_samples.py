"""Kernels of two chained products, and what they should give in float64."""

from collections.abc import Sequence

from tilewright.ir import Func, parse, verify

_PRODUCT = """%{name} = tensor.contract(%{x}, %{w}, par = ({par}), red = ({red}),
    reads = [[{first}], [{second}]], fill = [{fill}, none]) : f32[{sizes}] {{
  ^(%s: {dtype}, %t: {dtype}, %sum: f32)
  %u = scalar.cast(%s, dtype = "f32") : f32
  %v = scalar.cast(%t, dtype = "f32") : f32
  %r = scalar.fma(%u, %v, %sum) : f32
  scalar.yield(%r)
}}"""
_FINISHED = """%{name}_added = tensor.map(%{x}, %{bias}{more}, par = ({par}),
    reads = [[{at}], [{column}]{where}]) : {dtype}[{sizes}] {{
  ^(%1: f32, %2: f32{argument})
  %4 = scalar.add(%1, %2) : f32
  {added}
  %7 = scalar.cast(%{sum}, dtype = "{dtype}") : {dtype}
  scalar.yield(%7)
}}
%{name} = tensor.map(%{name}_added, par = ({par}), reads = [[{at}]]) : {dtype}[{sizes}] {{
  ^(%1: {dtype})
  %2 = scalar.const(value = 0.0, dtype = "{dtype}") : {dtype}
  %3 = scalar.max(%1, %2) : {dtype}
  scalar.yield(%3)
}}"""
_RESIDUAL = """%5 = scalar.cast(%3, dtype = "f32") : f32
  %6 = scalar.add(%4, %5) : f32"""


def chained(
    rows: Sequence[int],
    depth: int,
    columns: int,
    width: int,
    dtype: str = "f16",
    *,
    window: int = 1,
    residuals: tuple[bool, bool] = (False, False),
    stored: Sequence[str] = (),
    orders: tuple[str, str] = ("kc", "kc"),
) -> Func:
    """A kernel of %h = relu(bias + %x windows of %w [+ residual]) and %y the same of %h and %w2.

    rows: extents of the rows, the last two of them those of an image where `window` is more than 1.
    residuals: of which product. stored: which values are results besides %y: `h`, or `h_added` before the
    ReLU. orders: of weights, in rows of the channel `kc` or in columns `ck`.
    """
    names = [f"m{i}" for i in range(len(rows))]
    par1 = ", ".join(f"{d}: {n}" for d, n in [*zip(names, rows, strict=True), ("k", columns)])
    par2 = ", ".join(f"{d}: {n}" for d, n in [*zip(names, rows, strict=True), ("n", width)])
    first, sizes = ", ".join(names), ", ".join(map(str, rows))
    sizes1, sizes2 = f"{sizes}, {columns}", f"{sizes}, {width}"
    taps = "" if window == 1 else f"r: {window}, s: {window}, "
    half = window // 2
    place = (
        first
        if window == 1
        else ", ".join([*names[:-2], f"{names[-2]} + r - {half}", f"{names[-1]} + s - {half}"])
    )
    w_at = "r, s, k, c" if window > 1 else ("k, c" if orders[0] == "kc" else "c, k")
    w_shape = (f"{window}, {window}, " if window > 1 else "") + (
        f"{columns}, {depth}" if orders[0] == "kc" else f"{depth}, {columns}"
    )
    w2_at, w2_shape = (
        ("n, c", f"{width}, {columns}") if orders[1] == "kc" else ("c, n", f"{columns}, {width}")
    )
    params = [f"%x: {dtype}[{sizes}, {depth}]", f"%w: {dtype}[{w_shape}]", f"%b: f32[{columns}]"]
    params += [f"%w2: {dtype}[{w2_shape}]", f"%b2: f32[{width}]"]
    params += [f"%res: {dtype}[{sizes1}]"] * residuals[0] + [f"%res2: {dtype}[{sizes2}]"] * residuals[1]

    def finished(name: str, x: str, bias: str, residual: str, par: str, column: str, sizes: str) -> str:
        at = f"{first}, {column}"
        return _FINISHED.format(
            name=name, x=x, bias=bias, par=par, at=at, column=column, dtype=dtype, sizes=sizes,
            more=f", %{residual}" if residual else "", where=f", [{at}]" if residual else "",
            argument=f", %3: {dtype}" if residual else "", added=_RESIDUAL if residual else "",
            sum=6 if residual else 4,
        )  # fmt: skip

    body = [
        _PRODUCT.format(
            name="p",
            x="x",
            w="w",
            par=par1,
            red=f"{taps}c: {depth}",
            first=f"{place}, c",
            second=w_at,
            fill="0.0" if window > 1 else "none",
            sizes=sizes1,
            dtype=dtype,
        ),
        finished("h", "p", "b", "res" * residuals[0], par1, "k", sizes1),
        _PRODUCT.format(
            name="q",
            x="h",
            w="w2",
            par=par2,
            red=f"c: {columns}",
            first=f"{first}, c",
            second=w2_at,
            fill="none",
            sizes=sizes2,
            dtype=dtype,
        ),
        finished("y", "q", "b2", "res2" * residuals[1], par2, "n", sizes2),
    ]
    results = [*stored, "y"]
    types = [f"{dtype}[{sizes2 if name == 'y' else sizes1}]" for name in results]
    text = f"""module @m {{ tensor.func @k({", ".join(params)}) -> {", ".join(types)} {{
      {chr(10).join(body)}
      tensor.return({", ".join(f"%{name}" for name in results)})
    }} }}"""
    module = parse(text)
    verify(module)
    return module.funcs[0]
