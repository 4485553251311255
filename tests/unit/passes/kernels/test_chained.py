"""Chained products: their kernels on the emulator against float64, what is legal, and what the model says."""

import numpy as np
import pytest
from chained_samples import chained
from codegen_samples import run
from decision_samples import with_template
from matrix_samples import CTX, ERRORS, THREAD, inputs_of

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.costmodel import load_hardware
from tilewright.ir import Func, InputError, Module, parse, show_func
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.chained.choice import chained_points, chained_variants, choose_chained
from tilewright.passes.kernels.chained.lowering import lower_chained
from tilewright.passes.kernels.chained.parameters import ChainedParameters
from tilewright.passes.kernels.chained.view import ChainedView, chained_view
from tilewright.passes.kernels.decision import text_of


def by_roles(kernel: Func, plan: ChainedParameters) -> Func:
    """The thread-level kernel."""
    thread = lower_chained(with_template(kernel, "chained", plan))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


def windows_of(x: np.ndarray, size: int) -> np.ndarray:
    """The elements that a convolution of some rows sums over: [rows, taps * channels], padded with zeros."""
    half = size // 2
    padded = np.pad(x, [(0, 0)] * (x.ndim - 3) + [(half, half), (half, half), (0, 0)])
    h, w = x.shape[-3:-1]
    return np.stack([padded[..., r : r + h, s : s + w, :] for r in range(size) for s in range(size)], axis=-2)


def expected(kernel: Func, inputs: list[np.ndarray], results: int) -> list[np.ndarray]:
    """What the kernels of `chained_samples` give in float64, with the rounding of what is handed on."""
    named = {p.hint: a.astype(np.float64) for p, a in zip(kernel.params, inputs, strict=True)}
    x, w, w2, dtype = named["x"], named["w"], named["w2"], inputs[0].dtype
    if w.ndim == 4:
        taken = windows_of(x, w.shape[0])
        p = np.einsum("...tc,tkc->...k", taken, w.reshape(-1, *w.shape[2:]))
    else:
        p = x @ (w.T if w.shape[1] == x.shape[-1] else w)
    added = (p + named["b"] + named.get("res", 0.0)).astype(dtype).astype(np.float64)
    h = np.maximum(added, 0.0)
    q = h @ (w2.T if w2.shape[1] == h.shape[-1] else w2)
    y = np.maximum(q + named["b2"] + named.get("res2", 0.0), 0.0)
    return [*([added, h][: results - 1]), y]


CASES = [
    # a tile of columns, and of rows
    ({"rows": [128], "depth": 64, "columns": 64, "width": 64}, (64, 64, 64, 2, 2)),
    # sums of the second product are kept for three tiles, the last one cut; rows are cut; two warpgroups
    ({"rows": [150], "depth": 72, "columns": 152, "width": 40}, (128, 64, 48, 3, 2, 1)),
    # the same with all results stored, residuals on both sides, blocks that take several tiles of rows
    (
        {
            "rows": [4, 50],
            "depth": 136,
            "columns": 200,
            "width": 64,
            "residuals": (True, True),
            "stored": ["h_added", "h"],
        },
        (64, 128, 64, 2, 4, 2),
    ),
    (  # what the results are computed from besides comes by the copy engine: of both products
        {
            "rows": [4, 50],
            "depth": 136,
            "columns": 200,
            "width": 64,
            "residuals": (True, True),
            "stored": ["h_added", "h"],
        },
        (64, 128, 64, 2, 4, 2, 1, 2),
    ),
    # columns of the first product are kept for three tiles of the second, the last one cut
    (
        {
            "rows": [140],
            "depth": 144,
            "columns": 24,
            "width": 144,
            "residuals": (True, False),
            "stored": ["h_added"],
        },
        (128, 32, 64, 3, 2, 1),
    ),
    # three chunks of the second product in one tile; weights in columns of the channel; bfloat16
    (
        {"rows": [70], "depth": 64, "columns": 144, "width": 72, "dtype": "bf16", "orders": ("ck", "ck")},
        (64, 144, 96, 2, 3),
    ),
    # windows of an image, padded; two blocks of a multiprocessor
    (
        {
            "rows": [2, 7, 9],
            "depth": 64,
            "columns": 64,
            "width": 136,
            "window": 3,
            "residuals": (False, True),
        },
        (64, 64, 144, 2, 1, 1, 2),
    ),
    (  # the same of each of three tiles of the second product
        {"rows": [150], "depth": 40, "columns": 24, "width": 168, "dtype": "bf16", "residuals": (True, True)},
        (64, 32, 64, 2, 1, 2, 1, 1),
    ),
    # three warpgroups
    ({"rows": [200], "depth": 40, "columns": 96, "width": 32, "dtype": "bf16"}, (192, 64, 32, 2, 2)),
]


@pytest.mark.emulator
@pytest.mark.parametrize(("how", "plan"), CASES)
def test_results(how, plan):
    kernel = chained(**how)
    inputs = inputs_of(kernel)
    got = list(run(by_roles(kernel, ChainedParameters(*plan)), "emulator", inputs).values())
    dtype = how.get("dtype", "f16")
    for a, b in zip(got, expected(kernel, inputs, len(got)), strict=True):
        assert np.isfinite(a.astype(np.float64)).all()
        assert np.abs(a.astype(np.float64) - b).max() <= ERRORS[dtype] * np.abs(b).max()


@pytest.mark.emulator
def test_columns_beyond_the_last_hand_on_zeros():
    """A row of infinities gives sums that are no numbers beyond the last column, where weights are zero."""
    kernel = chained(rows=[64], depth=64, columns=40, width=32)
    inputs = inputs_of(kernel)
    inputs[0][3], inputs[1][:] = np.inf, -np.abs(inputs[1])  # the ReLU makes zeros of minus infinity
    (got,) = run(by_roles(kernel, ChainedParameters(64, 64, 32, 2, 1)), "emulator", inputs).values()
    (want,) = expected(kernel, inputs, 1)
    assert np.isfinite(want).all()
    assert np.abs(got.astype(np.float64) - want).max() <= ERRORS["f16"] * np.abs(want).max()


def changed(kernel: Func, old: str, new: str) -> Func:
    """The kernel with a part of its text replaced."""
    text = show_func(kernel, locations=False)
    assert old in text
    text = text.replace(old, new, 1)
    return parse(f"module @m {{ {text} }}").funcs[0]


READ = "reads = [[m0, k], [k]]"


@pytest.mark.parametrize(
    ("how", "edit", "clause"),
    [
        ({}, (), ""),
        ({"rows": [5, 3, 4], "window": 3, "stored": ["h"]}, (), ""),
        # rows and columns of the first product are as many: the second one may not take one for the other
        (
            {},
            ("reads = [[m0, c], [n, c]]", "reads = [[c, m0], [n, c]]"),
            "the rows of the first as they are",
        ),
        ({}, ("reads = [[m0, c], [n, c]]", "reads = [[63 - m0, c], [n, c]]"), "as they are"),
        ({}, (READ, "reads = [[m0, 63 - k], [k]]"), "elsewhere than where it computes"),
        ({"residuals": (False, True)}, ("(%q, %b2, %res2,", "(%q, %b2, %h,"), "a map reads both products"),
    ],
)
def test_what_is_legal(how, edit, clause):
    kernel = chained(**{"rows": [64], "depth": 64, "columns": 64, "width": 64} | how)
    view = chained_view(changed(kernel, *edit) if edit else kernel)
    assert clause in view if clause else isinstance(view, ChainedView)


def test_all_that_the_model_proposes_can_be_built():
    """Every division of a product fits its channels, registers and shared memory; the best ones compile."""
    kernel = chained(
        rows=[1000], depth=128, columns=512, width=128, residuals=(True, False), stored=["h_added"]
    )
    hardware = load_hardware("cuda:sm_90a")
    view = chained_view(kernel)
    points = chained_points(kernel, view, hardware)
    assert [p.estimate_s for p in points] == sorted(p.estimate_s for p in points)
    assert len(points) > 20
    for point in points[:: len(points) // 12]:
        text = emit_cuda(by_roles(kernel, point.parameters))
        needed = text.shared_bytes_static + text.shared_bytes_dynamic
        assert needed * point.parameters.resident <= hardware.smem_per_sm_bytes
        binary = compile_cuda(text.source)
        assert not binary.serialised
        assert not [k for k in binary.kernels.values() if k.spill_bytes]
    assert choose_chained(kernel, hardware).name == kernel.name
    variants = chained_variants(choose_chained(kernel, hardware), hardware)
    assert len({text_of(f) for f in variants}) == len(variants) > 1


def test_parameters_that_are_impossible_are_named():
    kernel = chained(rows=[64], depth=64, columns=256, width=256)
    view = chained_view(kernel)
    for plan, clause in (
        ((96, 64, 256, 2, 2), "rows in multiples of 64"),
        ((64, 64, 64, 2, 2), "one tile of columns of either product, got 4 and 4"),
        ((64, 96, 256, 2, 2), "whole chunks of 64 columns"),
        ((64, 256, 128, 2, 3), "expected slots for the 4 chunks"),
    ):
        with pytest.raises(InputError, match=clause):
            ChainedParameters(*plan).check(view)
