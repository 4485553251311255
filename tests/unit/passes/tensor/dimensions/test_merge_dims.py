"""Merged and dropped dimensions: kernels whose ops have several domains, and results that stay the same."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ir import interpret, parse, verify
from tilewright.ir.tensor.ops import dims
from tilewright.passes import PassContext, Pipeline, run_pipeline

FMA = "{ ^(%e0: f32, %e1: f32, %e2: f32) %e3 = scalar.fma(%e0, %e1, %e2) : f32 scalar.yield(%e3) }"
SUM = "{ ^(%e0: f32, %e1: f32) %e2 = scalar.add(%e0, %e1) : f32 scalar.yield(%e2) }"
MUL = "{ ^(%e0: f32, %e1: f32) %e2 = scalar.mul(%e0, %e1) : f32 scalar.yield(%e2) }"
EXP = "{ ^(%e0: f32) %e1 = scalar.exp(%e0) : f32 scalar.yield(%e1) }"
PASSES = "split-dims, merge-dims"


def kernel(params: str, result: str, *lines: str) -> str:
    """A module whose @main calls one kernel of these lines, which return `%out`."""
    names = ", ".join(p.split(":")[0] for p in params.split(", %"))
    arguments = ", %".join(n for n in names.split(", "))
    body = "\n".join(lines)
    return (
        f"module @m {{ tensor.func @k({params}) -> {result} {{\n{body}\ntensor.return(%out) }}\n"
        f"tensor.func @main({params}) -> {result} {{ "
        f"%out = tensor.call({arguments}, callee = @k) : {result} tensor.return(%out) }} }}"
    )


def inputs(module) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 1.5, p.tensor.shape).astype(np.float32) for p in module.main.params]


def domains(text: str) -> list[list[int]]:
    """Extents of the parallel domain of each op after the pass, which must not change results."""
    module = parse(text)
    verify(module)
    out = run_pipeline(module, Pipeline.parse(PASSES), PassContext(verify_each=True))
    data = inputs(module)
    for a, b in zip(interpret(module, *data), interpret(out, *data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    again = run_pipeline(out, Pipeline.parse(PASSES), PassContext(verify_each=True))
    assert again is out
    (func,) = (f for f in out.funcs if f.name != "main")
    return [list(dims(op, "par").values()) for op in func.body.ops[:-1]]


def conv(source: str, at: str = "n, c, y + r, x + s", *, n: int = 2, y: int = 4, x: int = 5, taps: int = 1):
    """A convolution of `source` to 6 channels, named %out, weights [6, 3, taps, taps]."""
    return (
        f"%out = tensor.contract({source}, %w, par = (n: {n}, k: 6, y: {y}, x: {x}), "
        f"red = (c: 3, r: {taps}, s: {taps}), reads = [[{at}], [k, c, r, s]], fill = [0.0, none]) "
        f": f32[{n}, 6, {y}, {x}] {FMA}"
    )


def scaled(reads: str, operand: str = "%x", result: str = "%p", n: int = 2, y: int = 4, x: int = 5) -> str:
    """A map of two factors, over the input of the convolution."""
    shape = f"{n}, 3, {y}, {x}"
    par = f"par = (i0: {n}, i1: 3, i2: {y}, i3: {x})"
    return f"{result} = tensor.map({operand}, {par}, reads = [{reads}]) : f32[{shape}] {MUL}"


IDENTITY = "[i0, i1, i2, i3]"
X, W = "%x: f32[2, 3, 4, 5]", "%w: f32[6, 3, 1, 1]"


@pytest.mark.parametrize(
    ("factor", "read", "expected"),
    [
        ("%g: f32[2, 3, 1, 1]", "[i0, i1, 0, 0]", [[2, 3, 20], [2, 6, 20]]),
        ("%g: f32[2, 3]", "[i0, i1]", [[2, 3, 20], [2, 6, 20]]),
        ("%g: f32[3, 1, 1]", "[i1, 0, 0]", [[2, 3, 20], [2, 6, 20]]),
        ("%g: f32[4, 5]", "[i2, i3]", [[2, 3, 20], [2, 6, 20]]),
        ("%g: f32[2, 3, 4, 5]", IDENTITY, [[2, 3, 20], [2, 6, 20]]),
        ("%g: f32[1, 1, 4, 5]", "[0, 0, i2, i3]", [[2, 3, 20], [2, 6, 20]]),
        ("%g: f32[5]", "[i3]", [[2, 3, 4, 5], [2, 6, 4, 5]]),
        ("%g: f32[5, 4]", "[i3, i2]", [[2, 3, 4, 5], [2, 6, 4, 5]]),
        ("%g: f32[4, 7]", "[i2, i3 + 1]", [[2, 3, 4, 5], [2, 6, 4, 5]]),
        ("%g: f32[4, 7]", "[i2, i3]", [[2, 3, 4, 5], [2, 6, 4, 5]]),
        ("%g: f32[7, 5]", "[i2, i3]", [[2, 3, 20], [2, 6, 20]]),
        ("%g: f32[20]", "[i2 * 5 + i3]", [[2, 3, 4, 5], [2, 6, 4, 5]]),
    ],
)
def test_a_factor_computed_where_the_contraction_reads(factor, read, expected):
    text = kernel(
        f"{X}, {factor}, {W}",
        "f32[2, 6, 4, 5]",
        scaled(f"{IDENTITY}, {read}", "%x, %g"),
        conv("%p"),
    )
    assert domains(text) == expected


def test_several_maps_in_a_row_and_an_epilogue():
    text = kernel(
        f"{X}, %g: f32[2, 3, 1, 1], %h: f32[3, 1, 1], %b: f32[6, 1, 1], {W}",
        "f32[2, 6, 4, 5]",
        scaled(f"{IDENTITY}, [i0, i1, 0, 0]", "%x, %g", "%p"),
        scaled(f"{IDENTITY}, [i1, 0, 0]", "%p, %h", "%q"),
        conv("%q").replace("%out", "%c"),
        "%out = tensor.map(%c, %b, par = (n: 2, k: 6, y: 4, x: 5), reads = [[n, k, y, x], [k, 0, 0]]) "
        f": f32[2, 6, 4, 5] {MUL}",
    )
    assert domains(text) == [[2, 3, 20], [2, 3, 20], [2, 6, 20], [2, 6, 20]]


def test_a_batch_of_one_and_a_squeezed_scale_go():
    """The scale is an intermediate value whose unit dimensions the contraction's domain does not have."""
    text = kernel(
        "%x: f32[1, 3, 4, 5], %g: f32[1, 3, 1, 1], %w: f32[6, 3, 1, 1]",
        "f32[1, 6, 4, 5]",
        "%s = tensor.map(%g, par = (a: 1, b: 3, d: 1, e: 1), reads = [[a, b, d, e]]) "
        f": f32[1, 3, 1, 1] {EXP}",
        scaled(f"{IDENTITY}, [0, i1, 0, 0]", "%x, %s", n=1),
        conv("%p", n=1),
    )
    assert domains(text) == [[3], [3, 20], [6, 20]]


@pytest.mark.parametrize(
    ("read", "expected"),
    [("[n, k - 1, y, x]", [2, 6, 20]), ("[n, k, y, 4 - x]", [2, 6, 4, 5]), ("[n, k, 1, x]", [2, 6, 4, 5])],
)
def test_a_prologue_read_again_by_the_epilogue(read, expected):
    text = kernel(
        f"{X}, %g: f32[3, 1, 1], {W}",
        "f32[2, 6, 4, 5]",
        scaled(f"{IDENTITY}, [i1, 0, 0]", "%x, %g"),
        conv("%p").replace("%out", "%c"),
        f"%out = tensor.map(%c, %p, par = (n: 2, k: 6, y: 4, x: 5), reads = [[n, k, y, x], {read}], "
        f"fill = [none, 2.0]) : f32[2, 6, 4, 5] {MUL}",
    )
    assert domains(text) == [[2, 3, *expected[2:]], expected, expected]


@pytest.mark.parametrize(
    ("at", "taps", "y", "x", "expected"),
    [
        ("n, c, y + r - 1, x + s - 1", 3, 4, 5, [[2, 3, 4, 5], [2, 6, 4, 5]]),  # a window
        ("n, c, y - 1 + r, x + s", 1, 4, 5, [[2, 3, 4, 5], [2, 6, 4, 5]]),  # its rows may be outside
        ("n, c, y, x", 1, 4, 7, [[2, 3, 4, 5], [2, 6, 4, 7]]),  # its columns may be: 5 is no next row
        ("n, c, y, x", 1, 6, 5, [[2, 3, 20], [2, 6, 30]]),  # whole rows outside stay outside
        ("n, c, 2 * y, 2 * x", 1, 2, 3, [[2, 3, 4, 5], [2, 6, 2, 3]]),  # a stride
    ],
)
def test_a_contraction_that_may_read_outside(at, taps, y, x, expected):
    text = kernel(
        f"{X}, %g: f32[3, 1, 1], %w: f32[6, 3, {taps}, {taps}]",
        f"f32[2, 6, {y}, {x}]",
        scaled(f"{IDENTITY}, [i1, 0, 0]", "%x, %g"),
        conv("%p", at, y=y, x=x, taps=taps),
    )
    assert domains(text) == expected


def test_a_value_read_without_the_pair_keeps_its_domain():
    """The prologue of the weights has dimensions of the same extents, which the contraction reduces."""
    text = kernel(
        "%x: f32[4, 5, 3], %g: f32[6, 3], %h: f32[6, 3]",
        "f32[4, 5, 6]",
        f"%p = tensor.map(%g, %h, par = (k: 6, c: 3), reads = [[k, c], [k, c]]) : f32[6, 3] {MUL}",
        "%out = tensor.contract(%x, %p, par = (y: 4, x: 5, k: 6), red = (c: 3), "
        f"reads = [[y, x, c], [k, c]]) : f32[4, 5, 6] {FMA}",
    )
    assert domains(text) == [[6, 3], [20, 6]]


def test_two_maps_that_only_share_a_kernel_keep_one_domain():
    text = (
        "module @m { tensor.func @k(%x: f32[1, 4, 5], %y: f32[1, 4, 5]) -> f32[1, 4, 5], f32[1, 4, 5] {\n"
        f"%a = tensor.map(%x, par = (n: 1, i: 4, j: 5), reads = [[n, i, j]]) : f32[1, 4, 5] {EXP}\n"
        f"%b = tensor.map(%y, par = (n: 1, i: 4, j: 5), reads = [[n, i, j]]) : f32[1, 4, 5] {EXP}\n"
        "tensor.return(%a, %b) }\n"
        "tensor.func @main(%x: f32[1, 4, 5], %y: f32[1, 4, 5]) -> f32[1, 4, 5], f32[1, 4, 5] {\n"
        "%a, %b = tensor.call(%x, %y, callee = @k) : f32[1, 4, 5], f32[1, 4, 5] tensor.return(%a, %b) } }"
    )
    assert domains(text) == [[20], [20]]


@pytest.mark.parametrize(("batch", "expected"), [(2, [[12], [12, 7]]), (1, [[6], [6, 7]])])
def test_rows_of_a_reduction_are_numbered_through(batch, expected):
    shape = f"{batch}, 2, 3"
    text = kernel(
        f"%x: f32[{shape}, 7]",
        f"f32[{shape}, 7]",
        f"%s = tensor.reduce(%x, par = (a: {batch}, b: 2, d: 3), red = (e: 7), "
        f"reads = [[a, b, d, e]]) : f32[{shape}] {SUM}",
        f"%out = tensor.map(%x, %s, par = (i: {batch}, j: 2, l: 3, m: 7), "
        f"reads = [[i, j, l, m], [i, j, l]]) : f32[{shape}, 7] {MUL}",
    )
    assert domains(text) == expected


def test_the_only_row_keeps_its_name():
    text = kernel(
        "%x: f32[1, 7]",
        "f32[1, 7]",
        f"%s = tensor.reduce(%x, par = (a: 1), red = (e: 7), reads = [[a, e]]) : f32[1] {SUM}",
        f"%out = tensor.map(%x, %s, par = (i: 1, m: 7), reads = [[i, m], [i]]) : f32[1, 7] {MUL}",
    )
    assert domains(text) == [[1], [1, 7]]


FACTORS = {
    "channel": ("f32[{n}, 3, 1, 1]", "[i0, i1, 0, 0]"),
    "affine": ("f32[3]", "[i1]"),
    "pixel": ("f32[{y}, {x}]", "[i2, i3]"),
    "column": ("f32[{x}]", "[i3]"),
    "turned": ("f32[{x}, {y}]", "[i3, i2]"),
    "same": ("f32[{n}, 3, {y}, {x}]", IDENTITY),
    "shifted": ("f32[{n}, 4, {y}, {x}]", "[i0, i1 + 1, i2, i3]"),
    "strided": ("f32[{n}, 3, {y}, {x}] by [{s}, {p}, {x}, 1] from 5", IDENTITY),
}


def random_kernel(factors, n: int, y: int, x: int, taps: int, again: str) -> str:
    """A prologue of these factors one after the other, a convolution, and an epilogue that reads `again`."""
    size = {"n": n, "y": y, "x": x, "p": y * x, "s": 5 * y * x}
    params, lines, last = [f"%x: f32[{n}, 3, {y}, {x}]"], [], "%x"
    for i, name in enumerate(factors):
        t, read = FACTORS[name]
        params.append(f"%g{i}: {t.format(**size)}")
        lines.append(scaled(f"{IDENTITY}, {read}", f"{last}, %g{i}", f"%p{i}", n, y, x))
        last = f"%p{i}"
    params.append(f"%w: f32[6, 3, {taps}, {taps}]")
    at = f"n, c, y + r - {taps // 2}, x + s - {taps // 2}"
    lines.append(conv(last, at, n=n, y=y, x=x, taps=taps).replace("%out", "%c"))
    epilogue = f"par = (n: {n}, k: 6, y: {y}, x: {x}), reads = [[n, k, y, x], {again}], fill = [none, 2.0]"
    lines.append(f"%out = tensor.map(%c, {last}, {epilogue}) : f32[{n}, 6, {y}, {x}] {MUL}")
    return kernel(", ".join(params), f"f32[{n}, 6, {y}, {x}]", *lines)


SIZES = {
    "n": st.integers(1, 3),
    "y": st.integers(1, 5),
    "x": st.integers(1, 5),
    "taps": st.sampled_from([1, 1, 3]),
    "again": st.sampled_from(
        ["[n, k, y, x]", "[n, 2, y, x]", "[0, k, y, x]", "[n, k, y + 1, x]", "[n, k, x, y]"]
    ),
}


def kernels(factors):
    """Kernels whose prologue has some of these factors."""
    return st.builds(random_kernel, st.lists(st.sampled_from(sorted(factors)), max_size=3), **SIZES)


def test_sums_side_by_side_name_their_rows_alike():
    text = """
    module @m {
      tensor.func @k(%x: f32[2, 6, 8], %z: f32[2, 6, 8], %v: f32[2, 6, 4]) -> f32[2, 6], f32[2, 6, 4] {
        %s = tensor.reduce(%x, par = (b: 2, n: 6), red = (m: 8), reads = [[b, n, m]]) : f32[2, 6] SUM
        %t = tensor.reduce(%z, par = (b: 2, n: 6), red = (m: 8), reads = [[b, n, m]]) : f32[2, 6] SUM
        %out = tensor.map(%v, %s, par = (b: 2, n: 6, e: 4), reads = [[b, n, e], [b, n]]) : f32[2, 6, 4] MUL
        tensor.return(%t, %out)
      }
      tensor.func @main(%x: f32[2, 6, 8], %z: f32[2, 6, 8], %v: f32[2, 6, 4]) -> f32[2, 6], f32[2, 6, 4] {
        %t, %out = tensor.call(%x, %z, %v, callee = @k) : f32[2, 6], f32[2, 6, 4]
        tensor.return(%t, %out)
      }
    }
    """
    assert domains(text.replace("SUM", SUM).replace("MUL", MUL)) == [[12], [12], [12, 4]]


@settings(max_examples=60, deadline=None)
@given(kernels(FACTORS))
def test_random_kernels_compute_the_same(text):
    domains(text)


@pytest.mark.parametrize("target", ["opencl", pytest.param("emulator", marks=pytest.mark.emulator)])
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
@given(text=kernels(FACTORS.keys() - {"strided"}))  # callers' arrays are dense
def test_random_kernels_run(target, text):
    module = parse(text)
    data = inputs(module)
    with tw.compile(module, target=target) as exe:
        got = exe(*data)
    (want,) = interpret(module, *data)
    np.testing.assert_allclose(np.asarray(got).reshape(want.shape), want, rtol=1e-4, atol=1e-5)
