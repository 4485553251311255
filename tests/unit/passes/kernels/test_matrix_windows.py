"""Windows by the copy engine: which factors have an im2col map; grouped and dilated ones against NumPy."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import run
from matrix_samples import assert_close, inputs_of, matrix_parameters, planned, product, view_of

from tilewright.ir import Func, Sym, walk
from tilewright.ir.expr import substitute
from tilewright.passes.kernels.matrix.boxes import SpatialWindow, boxes_of, start_of_box, windows_of
from tilewright.passes.kernels.matrix.problem import matrix_problem


def convolution(
    image: str = "2, 9, 8, 16", at: str = "n, y * 2 + r * 3 - 1, x + s - 2, c", y: int = 2, x: int = 9, **more
) -> Func:
    """Three by three taps of 16 channels, 3 apart along y, whose windows are 2 apart."""
    par = more.pop("par", f"n: 2, y: {y}, x: {x}, k: 24")
    weights = more.pop("weights", ("3, 3, 24, 16", "[r, s, k, c]"))
    return product(
        "f16", (image, weights[0]), par, more.pop("red", "c: 16, r: 3, s: 3"),
        (f"[{at}]", weights[1]), fill="[0.0, none]",
    )  # fmt: skip


def test_the_map_follows_from_the_indices():
    windows = windows_of(view_of(convolution()), 0)
    assert windows is not None
    assert windows.space == (SpatialWindow("y", 2, 2, "r", 3, -1, 9), SpatialWindow("x", 1, 9, "s", 1, -2, 8))
    # the last window along y begins at 1, 7 before the last pixel; those along x end one pixel outside
    assert [s.last for s in windows.space] == [-7, -1]
    parameter = windows.map(0, view_of(convolution()).sources[0].value.tensor, 64, 16, 32)
    assert parameter is not None
    assert parameter.recipe.steps == (1, 2, 1, 1)
    assert parameter.recipe.window is not None
    assert (parameter.recipe.window.lower, parameter.recipe.window.upper) == ((-1, -2), (-7, -1))


@pytest.mark.parametrize(
    "changes",
    [
        {"at": "n, y * 2 - r * 3 + 6, x + s - 2, c"},  # taps backwards
        {"at": "n, x + r * 3 - 1, y * 2 + s - 2, c"},  # windows walked along columns
        {"at": "n, y + x + r, x + s, c"},
        {"at": "n, y // 2 + r, x + s, c"},
        {"at": "n, y * 9 + r * 3 - 1, x + s - 2, c"},  # steps of nine
    ],
)
def test_other_indices_have_no_map(changes):
    view = view_of(convolution(**changes))
    windows = windows_of(view, 0)
    assert windows is None or windows.map(0, view.sources[0].value.tensor, 64, 16, 32) is None


def test_channels_of_a_group_are_whole_chunks():
    grouped = convolution(
        image="2, 9, 8, 48", at="n, y * 2 + r - 1, x + s - 1, g * 24 + c", y=5, x=8,
        par="g: 2, n: 2, y: 5, x: 8, k: 16", red="c: 24, r: 3, s: 3",
        weights=("3, 3, 2, 16, 24", "[r, s, g, k, c]"),
    )  # fmt: skip
    windows = windows_of(view_of(grouped), 0)
    assert windows is not None
    t = view_of(grouped).sources[0].value.tensor
    assert windows.map(0, t, 64, 16, 32) is None  # a chunk would bring channels of the next group
    slice_ = convolution(image="2, 9, 8, 48", at="n, y * 2 + r * 3 - 1, x + s - 2, c + 8")
    part = windows_of(view_of(slice_), 0)
    assert part is not None
    parameter = part.map(0, t, 64, 32, 64)  # what is beyond the slice is zero
    assert parameter is not None
    assert (parameter.offset, parameter.recipe.dims) == (16, (2, 9, 8, 16))


def engine(kernel: Func, *tiles: int) -> Func:
    plan = replace(
        matrix_parameters(*tiles, view_of(kernel).channel, engine="wgmma"),
        copiers=4,
        transport="engine",
        blocks=2,
    )
    return planned(kernel, plan)


@pytest.mark.emulator
def test_dilated_windows_on_the_emulator():
    kernel = convolution()
    func = engine(kernel, 64, 32, 16, 4, 1, 3)
    assert sum(op.name == "thread.copy_window" for op in walk(func.body)) == 1
    image, weights = inputs_of(kernel)
    padded = np.pad(image.astype(np.float64), ((0, 0), (1, 9), (2, 9), (0, 0)))
    want = sum(
        padded[:, 3 * r : 3 * r + 3 : 2, s : s + 9] @ weights[r, s].astype(np.float64).T
        for r in range(3)
        for s in range(3)
    )
    (got,) = run(func, "emulator", [image, weights]).values()
    assert_close(got.astype(np.float64), want, "f16")


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("image", "channel"), [("2, 9, 8, 32", "g * 16 + c"), ("2, 9, 8, 2, 16", "g, c")], ids=["one", "two"]
)
def test_grouped_windows_on_the_emulator(image, channel):
    kernel = convolution(
        image=image, at=f"n, y * 2 + r - 1, x + s - 1, {channel}", y=5, x=8,
        par="g: 2, n: 2, y: 5, x: 8, k: 16", weights=("3, 3, 2, 16, 16", "[r, s, g, k, c]"),
    )  # fmt: skip
    func = engine(kernel, 64, 16, 16, 4, 1, 3)
    assert sum(op.name == "thread.copy_window" for op in walk(func.body)) == 1
    image, weights = (v.astype(np.float64) for v in inputs_of(kernel))
    image = image.reshape(2, 9, 8, 32)
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0))).reshape(2, 11, 10, 2, 16)
    want = sum(
        np.einsum("nyxgc,gkc->gnyxk", padded[:, r : r + 9 : 2, s : s + 8], weights[r, s])
        for r in range(3)
        for s in range(3)
    )
    (got,) = run(func, "emulator", inputs_of(kernel)).values()
    assert_close(got.astype(np.float64), want, "f16")


def phases() -> Func:
    """A transposed convolution by kernels of 4 with strides of 2: four products, windows a pixel apart."""
    return convolution(
        image="2, 4, 3, 16", at="n, y + p + r - 1, x + q + s - 1, c", red="c: 16, r: 2, s: 2",
        par="p: 2, q: 2, n: 2, y: 4, x: 3, k: 16", weights=("2, 2, 2, 2, 16, 16", "[p, q, r, s, k, c]"),
    )  # fmt: skip


def test_windows_of_phases_are_offset_as_taps_are():
    windows = windows_of(view_of(phases()), 0)
    assert windows is not None
    assert [(s.shift, s.further) for s in windows.space] == [("p", 1), ("q", 1)]
    assert windows.offsets({"p": 1, "q": 0, "r": 1, "s": 1}) == (2, 1)
    far = convolution(
        image="2, 400, 3, 16", at="n, y + p * 300, x + q, c", red="c: 16",
        par="p: 2, q: 2, n: 2, y: 4, x: 3, k: 16", weights=("2, 2, 16, 16", "[p, q, k, c]"),
    )  # fmt: skip
    assert windows_of(view_of(far), 0) is None, "offsets are bytes"


def test_outer_dimensions_of_one_run_are_one_of_the_map():
    """A map has five dimensions at most: weights of phases and taps have six."""
    view = view_of(phases())
    boxes = boxes_of(view, 1)
    assert boxes is not None
    assert boxes.outer == ((("p", "q", "r", "s"), 16 * 16),)
    index = {d: Sym(d) for d in "pqrs"}
    at = start_of_box(boxes, index, view.sizes, 3, 8)
    assert substitute(at[0], {"p": 1, "q": 0, "r": 1, "s": 1}) == 11
    assert at[1:] == (3, 8)
    apart = convolution(weights=("3, 4, 24, 16", "[r, s, k, c]"))
    boxes = boxes_of(view_of(apart), 1)
    assert boxes is not None
    assert boxes.outer == ((("r",), 4 * 24 * 16), (("s",), 24 * 16)), "a column of taps is left out"


@pytest.mark.emulator
def test_windows_of_phases_on_the_emulator():
    func = engine(phases(), 64, 16, 16, 4, 1, 3)
    assert [sum(op.name == f"thread.copy_{x}" for op in walk(func.body)) for x in ("window", "tile")] == [
        1,
        1,
    ]
    image, weights = (v.astype(np.float64) for v in inputs_of(phases()))
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = np.zeros((2, 2, 2, 4, 3, 16))
    for p, q, r, s in np.ndindex(2, 2, 2, 2):
        want[p, q] += padded[:, p + r : p + r + 4, q + s : q + s + 3] @ weights[p, q, r, s].T
    (got,) = run(func, "emulator", inputs_of(phases())).values()
    assert_close(got.astype(np.float64), want, "f16")


@pytest.mark.parametrize(("channels", "brought"), [(64, True), (72, True), (20, False)])
def test_the_model_knows_which_convolutions_the_engine_brings(channels, brought):
    """Channels of a multiple of 16 bytes, groups aside; the last chunk may be a part of one."""
    kernel = convolution(
        image=f"2, 9, 8, {channels}", at="n, y * 2 + r - 1, x + s - 1, c", y=5, x=8,
        red=f"c: {channels}, r: 3, s: 3", weights=(f"3, 3, 24, {channels}", "[r, s, k, c]"),
    )  # fmt: skip
    assert matrix_problem(kernel, view_of(kernel)).boxes is brought
