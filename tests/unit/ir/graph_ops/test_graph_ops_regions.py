"""Pooling of regions of interest against brute force, on every level."""

import itertools

import numpy as np
import pytest
from graph_op_agreement import agree

from tilewright.ir import InputError

RNG = np.random.default_rng(6)


def randoms(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def sample(image, y, x):
    h, w = image.shape[1:]
    if y < -1 or x < -1 or y > h or x > w:
        return np.zeros(len(image))
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    a, c = int(y), int(x)
    rows, columns = (a, min(a + 1, h - 1)), (c, min(c + 1, w - 1))
    weights = (1 - (y - a), y - a), (1 - (x - c), x - c)
    return sum(
        weights[0][i] * weights[1][j] * image[:, rows[i], columns[j]]
        for i, j in itertools.product((0, 1), (0, 1))
    )


def aligned(data, rois, size, scale, ratio, mode):
    out = np.zeros((len(rois), data.shape[1], *size))
    for r, roi in enumerate(rois.astype(np.float64)):
        image = data[int(roi[0])].astype(np.float64)
        x0, y0, x1, y1 = roi[1:] * scale
        bins = max(y1 - y0, 1) / size[0], max(x1 - x0, 1) / size[1]
        count = [ratio if ratio > 0 else int(np.ceil(v)) for v in bins]
        for p, q in np.ndindex(*size):
            found = [
                sample(
                    image,
                    y0 + (p + (k + 0.5) / count[0]) * bins[0],
                    x0 + (q + (m + 0.5) / count[1]) * bins[1],
                )
                for k, m in np.ndindex(*count)
            ]
            out[r, :, p, q] = np.mean(found, 0) if mode == "avg" else np.max(found, 0)
    return out


def regions(count, extent):
    corner = RNG.uniform(-6, extent, (count, 2))
    boxes = np.concatenate([corner, corner + RNG.uniform(-2, extent, (count, 2))], -1)
    return np.concatenate([RNG.integers(0, 2, (count, 1)), boxes], -1).astype(np.float32)


@pytest.mark.parametrize(("mode", "ratio"), [("avg", 2), ("max", 2), ("avg", -1), ("max", -1), ("avg", 0)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_roi_align(mode, ratio, layout):
    data, rois = randoms(2, 3, 6, 7), regions(5, 12)
    given = data if layout == "NCHW" else data.transpose(0, 2, 3, 1).copy()
    attrs = {
        "pooled_size": (3, 2),
        "spatial_scale": 0.7,
        "sample_ratio": ratio,
        "mode": mode,
        "layout": layout,
    }
    (out,) = agree("roi_align", given, rois, compiled=layout == "NHWC" and ratio < 0, tolerance=1e-4, **attrs)
    out = out if layout == "NCHW" else out.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(out, aligned(data, rois, (3, 2), 0.7, ratio, mode), rtol=1e-3, atol=1e-4)


def test_roi_align_of_a_constant_image_and_no_region():
    data = np.full((1, 2, 8, 8), 3, np.float16)
    rois = np.array([[0, 1, 1, 6, 5]], np.float32)
    (out,) = agree("roi_align", data, rois, pooled_size=(2, 2), spatial_scale=1.0)
    np.testing.assert_allclose(out.astype(np.float32), 3, rtol=1e-2)
    (out,) = agree("roi_align", data, rois[:0], pooled_size=(2, 2), spatial_scale=1.0, sample_ratio=2)
    assert out.shape == (0, 2, 2, 2)


@pytest.mark.parametrize("ratio", [2, -1])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_a_number_of_no_image_stands_for_the_nearest_one(mode, ratio):
    data, rois = randoms(2, 3, 6, 7), regions(4, 5)
    attrs = {"pooled_size": (1, 2), "spatial_scale": 0.7, "sample_ratio": ratio, "mode": mode}
    rois[:, 0] = -3.0, -0.5, 1.5, 9.0
    (out,) = agree("roi_align", data, rois, tolerance=1e-4, **attrs)
    rois[:, 0] = 0, 0, 1, 1
    np.testing.assert_allclose(out, agree("roi_align", data, rois, **attrs)[0], rtol=1e-4, atol=1e-5)


def test_roi_pool_against_a_loop():
    data, rois = randoms(2, 3, 6, 7), regions(6, 12)
    (out,) = agree("roi_pool", data, rois, pooled_size=(3, 2), spatial_scale=0.7, compiled=True)
    for r, roi in enumerate(rois):
        scaled = roi[1:] * np.float32(0.7)
        x0, y0, x1, y1 = (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(int)
        spans = max(y1 - y0 + 1, 1) / 3, max(x1 - x0 + 1, 1) / 2
        for p, q in np.ndindex(3, 2):
            y = range(int(np.floor(p * spans[0] + 1e-5)) + y0, int(np.ceil((p + 1) * spans[0] - 1e-5)) + y0)
            x = range(int(np.floor(q * spans[1] + 1e-5)) + x0, int(np.ceil((q + 1) * spans[1] - 1e-5)) + x0)
            inside = [data[int(roi[0]), :, i, j] for i in y for j in x if 0 <= i < 6 and 0 <= j < 7]
            np.testing.assert_allclose(out[r, :, p, q], np.max(inside, 0) if inside else 0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "rois", "attrs", "message"),
    [
        ("roi_align", (2, 4), {}, "regions"),
        ("roi_align", (2, 5), {"mode": "sum"}, "mode"),
        ("roi_align", (2, 5), {"layout": "CHWN"}, "layout"),
        ("roi_pool", (2, 5), {"pooled_size": (0, 2)}, "at least 1"),
    ],
)
def test_operands_that_do_not_fit(name, rois, attrs, message):
    attrs = {"pooled_size": (2, 2), "spatial_scale": 1.0, **attrs}
    with pytest.raises(InputError, match=message):
        agree(name, randoms(1, 1, 3, 3), randoms(*rois), **attrs)
