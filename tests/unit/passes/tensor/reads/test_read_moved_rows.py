"""Norms of moved arrays: one kernel reads the rows where they come from, and what lies across stays apart."""

import numpy as np
import pytest
from decision_samples import parameters, template

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import parse, walk

#: a layer norm %y over the last dimension of %m
NORM = """
    %sum = tensor.reduce(%m, par = ({par}), red = (c: {c}), reads = [[{names}, c]],
        init = [0.0]) : f32[{rows}] {{
      ^(%a: {t}, %acc: f32) %w = scalar.cast(%a, dtype = "f32") : f32
      %s = scalar.add(%w, %acc) : f32 scalar.yield(%s) }}
    %mean = tensor.map(%sum, par = ({par}), reads = [[{names}]]) : f32[{rows}] {{
      ^(%a: f32) %n = scalar.const(value = {c}.0, dtype = "f32") : f32 %s = scalar.div(%a, %n) : f32
      scalar.yield(%s) }}
    %squares = tensor.reduce(%m, %mean, par = ({par}), red = (c: {c}), reads = [[{names}, c], [{names}]],
        init = [0.0]) : f32[{rows}] {{
      ^(%a: {t}, %u: f32, %acc: f32) %w = scalar.cast(%a, dtype = "f32") : f32
      %d = scalar.sub(%w, %u) : f32 %s = scalar.fma(%d, %d, %acc) : f32 scalar.yield(%s) }}
    %y = tensor.map(%m, %g, %mean, %squares, par = ({par}, c: {c}),
        reads = [[{names}, c], [c], [{names}], [{names}]]) : {t}[{rows}, {c}] {{
      ^(%a: {t}, %b: {t}, %u: f32, %q: f32) %w = scalar.cast(%a, dtype = "f32") : f32
      %v = scalar.cast(%b, dtype = "f32") : f32
      %d = scalar.sub(%w, %u) : f32 %n = scalar.const(value = {c}.0, dtype = "f32") : f32
      %p = scalar.div(%q, %n) : f32 %e = scalar.const(value = 1e-05, dtype = "f32") : f32
      %h = scalar.add(%p, %e) : f32 %r = scalar.rsqrt(%h) : f32 %z = scalar.mul(%d, %r) : f32
      %s = scalar.mul(%z, %v) : f32 %o = scalar.cast(%s, dtype = "{t}") : {t} scalar.yield(%o) }}"""
#: shapes of an array and of the rows that a copy makes of it, and where the copy reads
MOVES = {
    "enlarged": ("3, 12, 12, 64", "3, 24, 24", "n: 3, h: 24, w: 24", "n, h // 2, w // 2, c", "n, h, w"),
    "windows": (
        "3, 4, 4, 5, 5, 96",
        "3, 20, 20",
        "n: 3, h: 20, w: 20",
        "n, h // 5, w // 5, h % 5, w % 5, c",
        "n, h, w",
    ),
    "rotated": ("3, 300, 96", "3, 300", "n: 3, r: 300", "n, (r + 7) % 300, c", "n, r"),
    "across": ("3, 64, 32, 32", "3, 1024", "n: 3, r: 1024", "n, c, r // 32, r % 32", "n, r"),
}
#: every other row and column of four channels' worth each, side by side
PATCHES = """module @net {{
  tensor.func @main(%x: {t}[3, 20, 20, 48], %g: {t}[192]) -> {t}[3, 10, 10, 192] {{
    %m = tensor.map(%x, %x, %x, %x, par = (n: 3, h: 10, w: 10, c: 192), reads = [[n, h * 2, w * 2, c],
        [n, h * 2 + 1, w * 2, c - 48], [n, h * 2, w * 2 + 1, c - 96], [n, h * 2 + 1, w * 2 + 1, c - 144]],
        fill = [0.0, 0.0, 0.0, 0.0]) : {t}[3, 10, 10, 192] {{
      ^(%a: {t}, %b: {t}, %d: {t}, %e: {t})
      %i = scalar.index(at = c) : i32
      %k3 = scalar.const(value = 144, dtype = "i32") : i32 %l3 = scalar.lt(%i, %k3) : bool
      %s3 = scalar.select(%l3, %d, %e) : {t}
      %k2 = scalar.const(value = 96, dtype = "i32") : i32 %l2 = scalar.lt(%i, %k2) : bool
      %s2 = scalar.select(%l2, %b, %s3) : {t}
      %k1 = scalar.const(value = 48, dtype = "i32") : i32 %l1 = scalar.lt(%i, %k1) : bool
      %s1 = scalar.select(%l1, %a, %s2) : {t}
      scalar.yield(%s1) }}{norm}
    tensor.return(%y)
  }}
}}"""
#: windows of 5 by 5 of a rotated image, cut out of what a norm makes
CUT = """module @net {{
  tensor.func @main(%m: {t}[3, 20, 20, 96], %g: {t}[96]) -> {t}[48, 25, 96] {{{norm}
    %cut = tensor.map(%y, par = (i: 48, j: 25, c: 96),
        reads = [[i // 16, (i // 4 % 4 * 5 + j // 5 + 2) % 20, (i % 4 * 5 + j % 5 + 2) % 20, c]]
        ) : {t}[48, 25, 96] {{
      ^(%a: {t}) scalar.yield(%a) }}
    tensor.return(%cut)
  }}
}}"""


def program(move, dtype):
    """The program of a norm behind a move, or before one."""
    if move == "patches":
        norm = NORM.format(par="n: 3, h: 10, w: 10", rows="3, 10, 10", names="n, h, w", c=192, t=dtype)
        return PATCHES.format(t=dtype, norm=norm)
    if move == "cut":
        norm = NORM.format(par="n: 3, h: 20, w: 20", rows="3, 20, 20", names="n, h, w", c=96, t=dtype)
        return CUT.format(t=dtype, norm=norm)
    source, rows, par, at, names = MOVES[move]
    c = 64 if "64" in source else 96
    norm = NORM.format(par=par, rows=rows, names=names, c=c, t=dtype)
    return f"""module @net {{
      tensor.func @main(%x: {dtype}[{source}], %g: {dtype}[{c}]) -> {dtype}[{rows}, {c}] {{
        %m = tensor.map(%x, par = ({par}, c: {c}), reads = [[{at}]]) : {dtype}[{rows}, {c}] {{
          ^(%a: {dtype}) scalar.yield(%a) }}{norm}
        tensor.return(%y)
      }}
    }}"""


def lowered(text):
    return lower(parse(text), resolve_target("cuda:sm_90a:h200"))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("move", ["enlarged", "windows", "rotated", "patches", "cut"])
def test_a_moved_row_is_read_where_it_lies(move, dtype):
    network = lowered(program(move, dtype))
    (kernel,) = [f for f in network.tensor.funcs if f.name != "main"]
    assert template(kernel) == "rows_kept"
    assert parameters(kernel).vec > 1
    (row,) = [i for i, p in enumerate(kernel.params) if p.tensor.rank > 1]
    (thread,) = [f for f in network.thread.funcs if f.name == kernel.name]
    loads = [op for op in walk(thread.body) if op.name == "thread.load"]
    assert {op.get("lanes") for op in loads if op.operands[0] is thread.params[row]} == {
        parameters(kernel).vec
    }


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_columns_that_become_rows_are_moved_by_a_kernel_of_their_own(dtype):
    names = [f.name for f in lowered(program("across", dtype)).tensor.funcs if f.name != "main"]
    assert len(names) == 2, names


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("move", [*MOVES, "patches", "cut"])
def test_norms_of_moved_rows_are_right(move, dtype):
    text = program(move, dtype)
    rng = np.random.default_rng(5)
    stored = {"f16": np.float16, "f32": np.float32}[dtype]
    inputs = [rng.standard_normal(p.tensor.shape).astype(stored) for p in parse(text).main.params]
    (wanted,) = tw.interpret(parse(text), *inputs, precision="fp64")
    with tw.compile(parse(text), target="emulator") as exe:
        (found,) = exe(*inputs)
    tolerance = 2e-3 if dtype == "f16" else 2e-5
    np.testing.assert_allclose(found.astype(np.float64), wanted, atol=tolerance, rtol=tolerance)


def test_maps_that_choose_among_more_than_they_read_are_no_copies():
    """The halves of a real spectrum, inverted: a choice by index whose last part is computed."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(130).astype(np.float32) for _ in range(2))
    module = parse("""module @m {
      graph.func @main(%x: f32[130], %y: f32[130]) -> f32[130] {
        %0, %1 = graph.dft(%x, %y, inverse = true) : f32[130], f32[130]
        graph.return(%0)
      }
    }""")
    with tw.compile(module, "opencl") as exe:
        (got,) = exe(x, y)
    np.testing.assert_allclose(got, np.fft.ifft(x + 1j * y).real, atol=1e-5)
