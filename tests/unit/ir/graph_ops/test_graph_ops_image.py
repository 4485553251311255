"""Resizing and sampling of images: known values, brute force, and agreement of all levels."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from graph_op_agreement import agree

import tilewright as tw
from tilewright.ir import InputError
from tilewright.ir.graph_ops.interpolation import METHODS, MODES, ROUNDING, is_layout

RNG = np.random.default_rng(3)


def randoms(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def line(values, size, **attrs):
    return agree("resize1d", np.asarray(values, np.float32).reshape(1, 1, -1), size=(size,), **attrs)[0][0, 0]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("half_pixel", [0, 2.5, 7.5, 10]),
        ("pytorch_half_pixel", [0, 2.5, 7.5, 10]),
        ("align_corners", [0, 10 / 3, 20 / 3, 10]),
        ("asymmetric", [0, 5, 10, 10]),
        ("tf_half_pixel_for_nn", [2.5, 7.5, 10, 10]),
    ],
)
def test_modes_place_points(mode, wanted):
    np.testing.assert_allclose(line([0, 10], 4, coordinate_transformation_mode=mode), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [
        ("round", [0, 1, 1, 2, 2, 2]),
        ("round_prefer_ceil", [0, 1, 1, 2, 2, 2]),
        ("round_prefer_floor", [0, 0, 1, 1, 2, 2]),
        ("floor", [0, 0, 1, 1, 2, 2]),
        ("ceil", [0, 1, 1, 2, 2, 2]),
        ("", [0, 0, 1, 1, 2, 2]),
    ],
)
def test_rounding_of_the_nearest(rounding, wanted):
    # coordinates 0, 0.5, 1, 1.5, 2, 2.5
    attrs = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
    np.testing.assert_array_equal(line([0, 1, 2], 6, rounding_method=rounding, **attrs), wanted)


def test_the_nearest_corner_aligned_rounds_half_away():
    got = line([0, 1], 3, method="nearest_neighbor", coordinate_transformation_mode="align_corners")
    np.testing.assert_array_equal(got, [0, 1, 1])


def test_a_cubic_passes_through_its_points_and_keeps_constants():
    attrs = {"method": "cubic", "coordinate_transformation_mode": "align_corners"}
    np.testing.assert_allclose(line([3, 1, 4, 1], 10, **attrs)[::3], [3, 1, 4, 1], atol=1e-6)
    np.testing.assert_allclose(line([2, 2, 2], 8, method="cubic", cubic_exclude=True), 2, atol=1e-6)
    # by hand: weights (-1, 9, 9, -1) / 16 in the middle of two points
    assert line([3, 1, 4, 1], 7, **attrs)[3] == pytest.approx((-3 + 9 + 36 - 1) / 16, abs=1e-6)


def test_cropping_extrapolates():
    attrs = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": -7.0}
    np.testing.assert_allclose(line([0, 1, 2], 4, roi=(0.0, 1.5), **attrs), [0, 1, 2, -7], atol=1e-6)
    np.testing.assert_allclose(line([0, 1, 2], 1, roi=(0.0, 1.0), **attrs), [1], atol=1e-6)


@pytest.mark.parametrize(("method", "mode"), list(itertools.product(METHODS, MODES)))
def test_resize2d_of_every_mode(method, mode):
    rounding = {"nearest_neighbor": RNG.choice(["", *ROUNDING])}.get(method, "")
    attrs = {"method": method, "coordinate_transformation_mode": mode, "rounding_method": str(rounding)}
    roi = (0.1, 0.2, 0.8, 1.1) if mode == "tf_crop_and_resize" else ()
    for size in ((7, 3), (1, 8)):
        agree("resize2d", randoms(2, 3, 5, 4), size=size, roi=roi, extrapolation_value=0.5, **attrs)


@pytest.mark.parametrize(
    ("layout", "shape", "size"),
    [
        ("NHWC", (2, 5, 4, 3), (7, 9)),
        ("NCHW2c", (1, 2, 5, 4, 2), (3, 6)),
        ("NCHW1n2c", (1, 2, 4, 4, 1, 2), (8, 2)),
        ("HWCN", (4, 3, 2, 2), (8, 6)),
    ],
)
def test_resize2d_layouts(layout, shape, size):
    for method in METHODS:
        compiled = (layout, method) == ("NCHW2c", "cubic")
        agree("resize2d", randoms(*shape), size=size, layout=layout, method=method, compiled=compiled)


def test_resize_of_a_layout_is_resize_of_the_transposed():
    x = randoms(1, 3, 4, 5, 6)
    (a,) = agree("resize3d", x, size=(6, 3, 9), method="linear", compiled=True)
    (c,) = agree("resize3d", x.transpose(0, 2, 3, 4, 1), size=(6, 3, 9), layout="NDHWC", method="linear")
    np.testing.assert_allclose(a.transpose(0, 2, 3, 4, 1), c, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.uint8, np.int32])
def test_resize_dtypes(method, dtype):
    x = (RNG.random((1, 2, 6, 5)) * 100).astype(dtype)
    # rounding towards zero may make a unit of a tiny difference
    units = int(method != "nearest_neighbor")
    attrs = {"method": method, "coordinate_transformation_mode": "asymmetric"}
    (out,) = agree("resize2d", x, size=(9, 9), units=units, **attrs)
    assert out.dtype == dtype
    (out,) = agree("resize2d", x, size=(4, 9), method=method, out_dtype="f32")
    assert out.dtype == np.float32


def test_cubic_3d_one_axis_after_the_other():
    attrs = {"method": "cubic", "cubic_alpha": -0.75, "cubic_exclude": True}
    agree("resize3d", randoms(1, 2, 4, 5, 3), size=(6, 4, 7), **attrs)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"size": (2, 2), "layout": "NCWH2"}, "layout"),
        ({"size": (2,)}, "2 entries"),
        ({"size": (0, 2)}, "at least 1"),
        ({"size": (2, 2), "method": "area"}, "method"),
        ({"size": (2, 2), "coordinate_transformation_mode": "tf_crop_and_resize"}, "4 numbers"),
    ],
)
def test_resize_refuses(attrs, message):
    with pytest.raises(InputError, match=message):
        agree("resize2d", randoms(1, 1, 3, 3), **attrs)


def test_layouts():
    assert is_layout("NCHW16c", "NCHW")
    assert not is_layout("NCHWc", "NCHW")
    assert not is_layout("NCHH", "NCHW")


# -- sampling ------------------------------------------------------------------------------------------------
def test_an_identity_grid_gives_the_image_back():
    x = randoms(2, 3, 5, 6)
    theta = np.tile(np.eye(2, 3, dtype=np.float32), (2, 1, 1))
    (grid,) = agree("affine_grid", theta, target_shape=(5, 6), compiled=True)
    for method in ("nearest", "bilinear", "bicubic"):
        (out,) = agree("grid_sample", x, grid, method=method, padding_mode="border")
        np.testing.assert_allclose(out, x, atol=1e-4)


@pytest.mark.parametrize("mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic"])
def test_grid_sample(mode, align, method):
    # away from the ties of rounding, also outside the image
    grid = (RNG.integers(-150, 150, (2, 2, 4, 3)) / 100 + 0.003).astype(np.float32)
    attrs = {"method": method, "padding_mode": mode, "align_corners": align}
    agree(
        "grid_sample",
        randoms(2, 3, 5, 6),
        grid,
        compiled=align and (method, mode) == ("bicubic", "reflection"),
        tolerance=1e-4,
        **attrs,
    )
    if method != "bicubic":
        grid = (RNG.integers(-150, 150, (1, 3, 2, 3, 2)) / 100 + 0.003).astype(np.float32)
        agree("grid_sample", randoms(1, 2, 3, 4, 5), grid, tolerance=1e-4, **attrs)


def test_grid_sample_by_hand():
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    grid = np.array([[0.5, 2.0], [0.0, 0.0]], np.float32).reshape(1, 2, 1, 2)
    (out,) = agree("grid_sample", x, grid)
    # x = 1.5, y = 0.5 is the middle of 1, 2, 4, 5; x = 3 lies outside
    np.testing.assert_allclose(out[0, 0, 0], [3, 0], atol=1e-6)
    (out,) = agree("grid_sample", x, grid, padding_mode="border")
    np.testing.assert_allclose(out[0, 0, 0], [3, 3.5], atol=1e-6)
    (out,) = agree("grid_sample", x, grid, padding_mode="reflection")
    np.testing.assert_allclose(out[0, 0, 0], [3, 2.5], atol=1e-6)


def test_grid_sample_refuses():
    with pytest.raises(InputError, match="grid of 2"):
        agree("grid_sample", randoms(1, 1, 3, 3), randoms(1, 3, 2, 2))
    with pytest.raises(InputError, match="bicubic"):
        agree("grid_sample", randoms(1, 1, 3, 3, 3), randoms(1, 3, 2, 2, 2), method="bicubic")


@pytest.mark.parametrize(
    ("layout", "shape"), [("NHWC", (2, 6, 7, 3)), ("NCHW", (2, 3, 6, 7)), ("NCHW2c", (2, 1, 6, 7, 2))]
)
@pytest.mark.parametrize("method", ["bilinear", "nearest_neighbor"])
def test_crop_and_resize(layout, shape, method):
    boxes = np.array(
        [[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.93], [-0.3, 0.1, 0.5, 1.4], [0.9, 0.8, 0.2, 0.1]], np.float32
    )
    index = np.array([0, 1, 1, 0], np.int32)
    attrs = {"layout": layout, "method": method, "extrapolation_value": -3.0}
    for size in ((4, 5), (1, 3)):
        compiled = size == (4, 5) and (layout, method) == ("NHWC", "bilinear")
        agree(
            "crop_and_resize",
            randoms(*shape),
            boxes,
            index,
            crop_size=size,
            compiled=compiled,
            tolerance=1e-4,
            **attrs,
        )


def test_a_whole_box_is_a_corner_aligned_resize():
    x = randoms(2, 3, 5, 6)
    boxes, index = np.array([[0, 0, 1, 1]], np.float32), np.array([1], np.int32)
    (crop,) = agree("crop_and_resize", x, boxes, index, crop_size=(9, 11))
    (whole,) = agree("resize2d", x[1:], size=(9, 11), coordinate_transformation_mode="align_corners")
    np.testing.assert_allclose(crop, whole, atol=1e-5)


# -- importing -----------------------------------------------------------------------------------------------
def imported(op, inputs, attrs, result, tmp_path):
    """The module of one Relay operator."""
    file = tmp_path / "op.relay"
    params = ", ".join(f"%x{i}: {t}" for i, t in enumerate(inputs))
    names = ", ".join(f"%x{i}" for i in range(len(inputs)))
    file.write_text(
        f'#[version = "0.0.5"]\ndef @main({params}) -> {result} {{\n  {op}({names}, {attrs})\n}}\n'
    )
    return tw.frontends.relay.load(str(file))


def test_relay_upsampling_is_resizing(tmp_path):
    attrs = 'scale_h=1.5f, scale_w=2f, method="bilinear"'
    m = imported(
        "nn.upsampling", ["Tensor[(1, 2, 3, 4), float32]"], attrs, "Tensor[(1, 2, 5, 8), float32]", tmp_path
    )
    (op,) = (op for op in m.main.body.ops if op.name == "graph.resize2d")
    assert (op["size"], op["method"]) == ((5, 8), "linear")
    assert op["coordinate_transformation_mode"] == "asymmetric"


def test_relay_rounding_is_round_by_default(tmp_path):
    attrs = 'size=[4], roi=[0f, 0f], method="nearest_neighbor", coordinate_transformation_mode="asymmetric"'
    m = imported(
        "image.resize1d", ["Tensor[(1, 1, 2), float32]"], attrs, "Tensor[(1, 1, 4), float32]", tmp_path
    )
    (out,) = tw.interpret(m, np.array([[[0, 1]]], np.float32))
    np.testing.assert_array_equal(out[0, 0], [0, 1, 1, 1])


def test_relay_sizes_may_be_constant_operands(tmp_path):
    file = tmp_path / "dyn.relay"
    file.write_text("""#[version = "0.0.5"]
def @main(%x: Tensor[(1, 2, 3, 4), float32]) {
  dyn.nn.upsampling(%x, 2f, 1.5f, layout="NCHW", method="bilinear", align_corners=True)
}
""")
    m = tw.frontends.relay.load(str(file))
    (op,) = (op for op in m.main.body.ops if op.name == "graph.resize2d")
    assert (op["size"], op["coordinate_transformation_mode"]) == ((6, 6), "align_corners")
