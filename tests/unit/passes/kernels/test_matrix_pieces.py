"""Products of float32 factors that are stored in pieces: on the emulator, beside chains, and in networks."""

import sys
from dataclasses import replace
from itertools import chain as joined_groups
from itertools import product

import numpy as np
import pytest
from codegen_samples import DEVICES, run
from codegen_samples import kernel as thread_kernel
from matrix_samples import (
    CTX,
    convolution,
    convolved,
    gemm,
    matrix_parameters,
    planned,
    source,
    split_of,
    stored,
    view_of,
)
from split_samples import KINDS, assert_no_worse, chain, factors, pieces, truncated

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.costmodel import load_hardware
from tilewright.ir import Func, InputError, parse, walk
from tilewright.ir.constants import Constants
from tilewright.ir.float_pieces import PIECES, SCALE, SPLIT_BELOW, joined, piece_of, pieces_of
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.matrix import choice
from tilewright.passes.kernels.matrix import space as matrix_space
from tilewright.passes.kernels.matrix.bound import matrix_bound
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.space import MatrixProblem, takes_roles
from tilewright.passes.kernels.matrix.view import LEAST_STORED_SUM
from tilewright.passes.tensor.factors import store_pieces
from tilewright.passes.tensor.factors.store_pieces import _factor, _Product, _reader

H100 = load_hardware("H100")

#: numbers that are hard to split: the least one, the last one that is a sum of pieces, those that are not
HARD = np.array(
    [0, -1, 1e-45, -1e-40, 1.2345678, np.nextafter(np.float32(SPLIT_BELOW), np.float32(0)), SPLIT_BELOW, 3e38,
     np.inf, -np.inf, np.nan],
    dtype=np.float32,
)  # fmt: skip


def test_pieces_hold_every_number():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    for x in (HARD, bits):
        np.testing.assert_array_equal(joined(*(piece_of(x, i) for i in range(PIECES))), x)
        for i, piece in enumerate(pieces_of(x)):
            np.testing.assert_array_equal(piece.view(np.uint16), piece_of(x, i).view(np.uint16))


SPLIT = """
  %0 = thread.load(%x, at = [tid]) : f32
  %1 = scalar.piece(%0, number = 0) : bf16
  %2 = scalar.piece(%0, number = 1) : bf16
  %3 = scalar.piece(%0, number = 2) : bf16
  %4 = scalar.join_pieces(%1, %2, %3) : f32
  thread.store(%1, %a, at = [tid])
  thread.store(%2, %b, at = [tid])
  thread.store(%3, %c, at = [tid])
  thread.store(%4, %y, at = [tid])
"""


@pytest.mark.emulator
@pytest.mark.parametrize("target", DEVICES)
def test_devices_split_as_the_interpreter_does(target):
    n = len(HARD)
    pieces_of_x = dict.fromkeys("abc", f"bf16[{n}]")
    func = thread_kernel(SPLIT, {"x": f"f32[{n}]", **pieces_of_x, "y": f"f32[{n}]"}, block=n)
    got = run(func, target, [HARD])
    np.testing.assert_array_equal(got["y"], HARD)
    for number, name in enumerate("abc"):
        np.testing.assert_array_equal(got[name].view(np.uint16), piece_of(HARD, number).view(np.uint16))


def by_roles(kernel: Func, *tiles: int, **more: int | str) -> Func:
    plan = matrix_parameters(*tiles, view_of(kernel).channel, engine="wgmma")
    plan = replace(plan, **({"copiers": 4, "transport": "engine"} | more))
    return planned(kernel, plan)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("tiles", "more"),
    [
        ((128, 32, 32, 8, 1, 2), {"blocks": 1}),  # two warpgroups, two tiles
        ((64, 16, 32, 4, 1, 3), {"blocks": 2, "teams": 2}),
        ((64, 48, 16, 4, 1, 2), {"transport": "threads"}),
        ((64, 32, 32, 4, 1, 3), {"parts": 3}),  # 6, 6 and 4 chunks
    ],
)
def test_products_and_what_is_not_finite(tiles, more):
    """Errors are those of chains at most; rows and columns with infinities are as on the lanes."""
    kernel = stored(gemm("f32", 70, 40, LEAST_STORED_SUM, arithmetic="split"))
    assert view_of(kernel).stored
    func = by_roles(kernel, *tiles, **more)
    a, b = factors("normal", 70, LEAST_STORED_SUM, 40)
    a[3, 5], b[9, 7], a[20, 2], a[33, :] = np.inf, np.nan, 3e38, 0.0
    a[21], b[:, 4] = a[21] * 1e30, b[:, 4] * 1e-30
    a[30, 30], b[30, :] = -np.inf, 0.0  # -inf * 0
    (got,) = run(func, "emulator", split_of(a, np.ascontiguousarray(b.T))).values()
    want = chain(a, b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    rows, columns = np.delete(np.arange(70), [3, 20, 21, 30]), np.delete(np.arange(40), [4, 7])
    assert_no_worse(got[np.ix_(rows, columns)], a[rows], b[:, columns], "normal")
    exact, size = a[21].astype(float) @ b.astype(float), np.abs(a[21].astype(float)) @ np.abs(b.astype(float))
    assert (np.abs(got[21] - exact) <= 2.0**-22 * size)[columns].all()


@pytest.mark.emulator
def test_windows_with_edges_and_an_epilogue():
    kernel = stored(convolution("f32", 2, (7, 7), 64, 24, 3, 1, "NHWC", arithmetic="split"))
    assert view_of(kernel).stored
    rng = np.random.default_rng(1)
    x, w, bias, res = (rng.standard_normal(s).astype(np.float32)
                       for s in ((2, 7, 7, 64), (3, 3, 24, 64), (24,), (2, 7, 7, 24)))  # fmt: skip
    func = by_roles(kernel, 64, 32, 32, 4, 1, 3, blocks=1)
    assert "thread.copy_window" in [op.name for op in walk(func.body)]
    (got,) = run(func, "emulator", [bias, res, *split_of(x, w)]).values()
    assert np.abs(got - convolved(x, w, bias, res, 3, 1, "NHWC")).max() < 4e-5


TURNED = """module @m {
  tensor.func @t(%a: f32[1024, 2048], %b: f32[1024, 2048]) -> f32[2048, 2048] {
    %r = tensor.contract(%a, %b, par = (m: 2048, n: 2048), red = (c: 1024), reads = [[c, m], [c, n]],
                         factors = "split") : f32[2048, 2048] {
      ^(%s: f32, %t: f32, %u: f32)
      %v = scalar.fma(%s, %t, %u) : f32
      scalar.yield(%v)
    }
    tensor.return(%r)
  }
  tensor.func @main(%a: f32[1024, 2048], %b: f32[1024, 2048]) -> f32[2048, 2048] {
    %r = tensor.call(%a, %b, callee = @t) : f32[2048, 2048]
    tensor.return(%r)
  }
}"""


@pytest.mark.emulator
def test_pieces_are_stored_in_the_order_of_the_array_and_multiplied_turned():
    """As gradients have them: both factors in columns of what is summed."""
    module = run_pipeline(parse(TURNED), Pipeline.parse("store-pieces"), CTX)
    kernel = next(f for f in module.funcs if f.name == "t")
    assert [p.tensor.shape for p in kernel.params] == [(1024, 2048)] * 6
    text = TURNED.replace("2048, 2048", "72, 40").replace("m: 2048, n: 2048", "m: 72, n: 40")
    text = text.replace("a: f32[1024, 2048]", "a: f32[520, 72]").replace(
        "b: f32[1024, 2048]", "b: f32[520, 40]"
    )
    (small, _) = parse(text.replace("c: 1024", "c: 520")).funcs
    view = view_of(small)
    lasting = [replace(_factor(small, view.op, i, view.channel), order=(0, 1)) for i in (0, 1)]
    turned = _reader(_Product(small, view.op, (lasting[0], lasting[1])))
    func = by_roles(turned, 64, 64, 32, 4, 1, 2, blocks=1)
    a, b = factors("normal", 72, 520, 40)
    (got,) = run(func, "emulator", split_of(np.ascontiguousarray(a.T), b)).values()
    assert_no_worse(got, a, b, "normal")


@pytest.mark.parametrize("kind", KINDS)
def test_one_sum_is_long_enough_even_if_hardware_truncates(kind):
    """Small products before large ones in one sum, which is promoted after every 32."""
    k, interval = LEAST_STORED_SUM, 32
    a, b = factors(kind, 64, k, 64)
    first, second = pieces(a), pieces(b)
    total = np.zeros((64, 64), dtype=np.float32)
    for at in range(0, k, interval):
        part = np.zeros_like(total)
        for (i, j), inner in product(joined_groups.from_iterable(PRODUCTS), range(at, at + interval, 16)):
            step = slice(inner, inner + 16)
            exact = first[i][:, step].astype(np.float64) @ second[j][step].astype(np.float64)
            part = truncated(part.astype(np.float64) + exact)
        total = total + part
    assert_no_worse(total * np.float32(SCALE**-2), a, b, kind)


def test_kernels_build_without_spills():
    kernel = stored(gemm("f32", 4096, 4096, 4096, arithmetic="split"))
    for tiles, more in (((128, 192, 32, 8, 1, 3), {}), ((64, 192, 32, 4, 1, 4), {"teams": 2})):
        built = compile_cuda(source(by_roles(kernel, *tiles, blocks=132, **more)), arch="sm_90a")
        assert not any(k.spill_bytes for k in built.kernels.values())
        assert "serializ" not in built.log


def test_stored_factors_are_multiplied_by_roles_in_long_sums():
    kernel = stored(gemm("f32", 256, 256, LEAST_STORED_SUM, arithmetic="split"))
    with pytest.raises(InputError, match="a role that copies"):
        by_roles(kernel, 64, 64, 32, 4, 1, 3, copiers=0, transport="threads")
    with pytest.raises(InputError, match="at most 32"):
        by_roles(kernel, 64, 64, 64, 4, 1, 3)
    problem = matrix_problem(kernel, view_of(kernel))
    assert problem.stored
    assert takes_roles(problem, H100)
    assert not takes_roles(replace(problem, channel=LEAST_STORED_SUM - 1), H100)


#: microseconds on an H200 of products that read stored pieces, by columns of a tile, stages and teams
MEASURED = {
    (2048, 2048, 2048): {(128, 3, 1): 127, (128, 4, 1): 130, (144, 4, 1): 139, (96, 4, 2): 161},
    (4096, 4096, 4096): {(128, 3, 1): 1112, (192, 3, 1): 1142, (128, 4, 1): 1170, (144, 4, 1): 1239,
                         (192, 2, 1): 1299, (96, 4, 2): 1341},
    (8192, 8192, 8192): {(192, 2, 1): 9236, (128, 3, 1): 9295, (144, 4, 1): 9415, (192, 3, 1): 10269,
                         (96, 4, 2): 10547},
    (8192, 2304, 768): {(144, 4, 1): 225, (128, 4, 1): 226, (192, 3, 1): 235, (96, 4, 2): 263},
    (8192, 768, 768): {(128, 4, 1): 80, (192, 3, 1): 80, (96, 4, 2): 86, (160, 3, 1): 100},
    (8192, 3072, 768): {(192, 3, 1): 290, (128, 4, 1): 305, (144, 4, 1): 312, (96, 4, 2): 355},
    (8192, 768, 3072): {(192, 3, 1): 286, (128, 4, 1): 297, (144, 4, 1): 315, (96, 4, 2): 360},
}  # fmt: skip


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_the_chosen_point_is_nearly_the_fastest_that_was_measured(size):
    m, n, k = size
    problem = MatrixProblem(1, m, n, k, 1, 6, 6 * m * k, 6 * n * k, 4 * m * n, split=True, boxes=True)
    h200 = load_hardware("H200")
    space = matrix_space.matrix_space(problem, h200)
    estimates = choice.estimate_matrix(problem, space, h200) * 1e6
    bounds = matrix_bound(problem, space, h200).seconds * 1e6
    columns = ((space.m == 128) & (space.parts == 1), space.n, space.stages, space.teams)
    points = {}
    for i in range(len(space)):
        here, *at = (int(c[i]) for c in columns)
        if here and tuple(at) in MEASURED[size]:
            points[tuple(at)] = i
    assert points.keys() == MEASURED[size].keys()
    measured = {at: MEASURED[size][at] for at in points}
    assert all(bounds[i] <= measured[at] for at, i in points.items())
    chosen = min(points, key=lambda at: estimates[points[at]])
    assert measured[chosen] <= 1.06 * min(measured.values())
    assert all(0.75 < estimates[i] / measured[at] < 1.25 for at, i in points.items())


TEXT = """module @m { graph.func @main(%x: f32[128, 512]) -> f32[128, 64] {
 %w = graph.constant(name = "w") : f32[64, 512]
 %v = graph.constant(name = "v") : f32[64, 512]
 %0 = graph.relu(%x) : f32[128, 512]
 %1 = graph.dense(%0, %w) : f32[128, 64]
 %2 = graph.dense(%0, %v) : f32[128, 64]
 %3 = graph.multiply(%1, %2) : f32[128, 64]
 graph.return(%3) } }"""


@pytest.mark.emulator
def test_a_network_with_stored_factors(monkeypatch: pytest.MonkeyPatch):
    """Estimates are changed so that small products take roles, as large ones do by themselves."""
    estimate = choice.estimate_matrix

    def preferred(problem, space, hardware):
        return estimate(problem, space, hardware) * np.where(space.by_roles, 1e-3, 1.0)

    monkeypatch.setattr(sys.modules[choice.__name__], "estimate_matrix", preferred)
    for name in ("LEAST_ROLE_SUMS", "LEAST_ROLE_TILES"):
        monkeypatch.setattr(matrix_space, name, 0)
    monkeypatch.setattr(store_pieces, "GAIN", 100.0)
    choice.choose_matrix.cache_clear()
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal((n, 512)).astype(np.float32) for n in (128, 64, 64))
    try:
        exe = tw.compile(replace(parse(TEXT), constants=Constants({"w": w, "v": v})), "emulator")
    finally:
        choice.choose_matrix.cache_clear()
    assert any(launch.maps for launch in exe.plan.launches)
    first = np.maximum(x, 0).astype(np.float64)
    want = (first @ w.T.astype(np.float64)) * (first @ v.T.astype(np.float64))
    got = np.asarray(exe(x)).astype(np.float64)
    assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()
