"""Norms of moved arrays: one kernel reads the rows where they come from, and what lies across stays apart."""

import numpy as np
import pytest
from decision_samples import template

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import parse

#: a layer norm over the last dimension of an array that a copy makes
NORM = """module @net {{
  tensor.func @main(%x: {t}[{source}], %g: {t}[{c}]) -> {t}[{rows}, {c}] {{
    %m = tensor.map(%x, par = ({par}, c: {c}), reads = [[{at}]]) : {t}[{rows}, {c}] {{
      ^(%a: {t}) scalar.yield(%a) }}
    %sum = tensor.reduce(%m, par = ({par}), red = (c: {c}), reads = [[{names}, c]], init = [0.0]) : f32[{rows}] {{
      ^(%a: {t}, %acc: f32) %w = scalar.cast(%a, dtype = "f32") : f32
      %s = scalar.add(%w, %acc) : f32 scalar.yield(%s) }}
    %mean = tensor.map(%sum, par = ({par}), reads = [[{names}]]) : f32[{rows}] {{
      ^(%a: f32) %n = scalar.const(value = {c}.0, dtype = "f32") : f32 %s = scalar.div(%a, %n) : f32
      scalar.yield(%s) }}
    %squares = tensor.reduce(%m, %mean, par = ({par}), red = (c: {c}), reads = [[{names}, c], [{names}]], init = [0.0]) : f32[{rows}] {{
      ^(%a: {t}, %u: f32, %acc: f32) %w = scalar.cast(%a, dtype = "f32") : f32
      %d = scalar.sub(%w, %u) : f32 %s = scalar.fma(%d, %d, %acc) : f32 scalar.yield(%s) }}
    %y = tensor.map(%m, %g, %mean, %squares, par = ({par}, c: {c}),
        reads = [[{names}, c], [c], [{names}], [{names}]]) : {t}[{rows}, {c}] {{
      ^(%a: {t}, %b: {t}, %u: f32, %q: f32) %w = scalar.cast(%a, dtype = "f32") : f32
      %v = scalar.cast(%b, dtype = "f32") : f32
      %d = scalar.sub(%w, %u) : f32 %n = scalar.const(value = {c}.0, dtype = "f32") : f32
      %p = scalar.div(%q, %n) : f32 %e = scalar.const(value = 1e-05, dtype = "f32") : f32
      %h = scalar.add(%p, %e) : f32 %r = scalar.rsqrt(%h) : f32 %z = scalar.mul(%d, %r) : f32
      %s = scalar.mul(%z, %v) : f32 %o = scalar.cast(%s, dtype = "{t}") : {t} scalar.yield(%o) }}
    tensor.return(%y)
  }}
}}"""
#: shapes, and where the copy reads: an enlarged image, windows, a rotation, and columns that become rows
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


def norm(move, dtype):
    """The program of a norm behind a move; the number of channels is 64 or 96."""
    source, rows, par, at, names = MOVES[move]
    c = 64 if "64" in source else 96
    return NORM.format(source=source, rows=rows, par=par, at=at, names=names, c=c, t=dtype)


def kernels(text):
    lowered = lower(parse(text), resolve_target("cuda:sm_90a:h200"))
    return [f for f in lowered.tensor.funcs if f.name != "main"]


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("move", ["enlarged", "windows", "rotated"])
def test_a_moved_row_is_read_where_it_lies(move, dtype):
    (kernel,) = kernels(norm(move, dtype))
    assert template(kernel) == "rows_kept"
    assert len(kernel.params) == 2


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_columns_that_become_rows_are_moved_by_a_kernel_of_their_own(dtype):
    names = [f.name for f in kernels(norm("across", dtype))]
    assert len(names) == 2, names


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("move", list(MOVES))
def test_norms_of_moved_rows_are_right(move, dtype):
    text = norm(move, dtype)
    rng = np.random.default_rng(5)
    stored = {"f16": np.float16, "f32": np.float32}[dtype]
    inputs = [rng.standard_normal(p.tensor.shape).astype(stored) for p in parse(text).main.params]
    (wanted,) = tw.interpret(parse(text), *inputs, precision="fp64")
    with tw.compile(parse(text), target="emulator") as exe:
        (found,) = exe(*inputs)
    tolerance = 2e-3 if dtype == "f16" else 2e-5
    np.testing.assert_allclose(found.astype(np.float64), wanted, atol=tolerance, rtol=tolerance)
