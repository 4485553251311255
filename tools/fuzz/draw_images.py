"""Draws resizing, sampling, regions, boxes and transforms of signals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tilewright.ir.graph_ops.layouts import data_layouts
from tilewright.tools.fuzz.draw_layers import image
from tilewright.tools.fuzz.program import RandomGraph

TRANSFORMS = ("half_pixel", "align_corners", "asymmetric")


def _resize(n: int, p: RandomGraph) -> None:
    layout = p.choose(data_layouts(n)[:2])
    x = image(p, n, layout)
    attrs: dict[str, Any] = {"coordinate_transformation_mode": p.choose(TRANSFORMS)}
    attrs["method"] = p.choose(
        ["nearest_neighbor", "linear", "cubic"] if n < 3 else ["nearest_neighbor", "linear"]
    )
    if attrs["method"] == "nearest_neighbor":
        attrs["rounding_method"] = p.choose(["round", "floor", "ceil"])
    p.emit(f"resize{n}d", x, size=tuple(p.integer(1, 9) for _ in range(n)), layout=layout, **attrs)


def _grid_sample(p: RandomGraph) -> None:
    x = p.fresh((1, p.integer(1, 3), p.integer(2, 6), p.integer(2, 6)), "f32")
    # no sampling of the nearest pixel: rounding of a coordinate would decide which one
    grid = p.fresh((1, 2, p.integer(1, 4), p.integer(1, 4)), "f32", -1.3, 1.3)
    padding = p.choose(["zeros", "border", "reflection"])
    p.emit(
        "grid_sample",
        x,
        grid,
        method=p.choose(["bilinear", "bicubic"]),
        padding_mode=padding,
        align_corners=True,
    )


def _affine_grid(p: RandomGraph) -> None:
    p.emit(
        "affine_grid",
        p.fresh((p.integer(1, 2), 2, 3), "f32"),
        target_shape=(p.integer(2, 5), p.integer(2, 5)),
    )


def _boxes(p: RandomGraph, rows: int, extent: float, columns: int) -> np.ndarray:
    corners = p.rng.uniform(0, extent, (rows, 2, 2))
    ordered = np.sort(corners, axis=1).reshape(rows, 4)
    if columns == 5:
        ordered = np.concatenate([np.zeros((rows, 1)), ordered], axis=1)
    return ordered.astype(np.float32)


def _regions(name: str, p: RandomGraph) -> None:
    x = p.fresh((1, p.integer(1, 3), 8, 8), "f32")
    rois = p.given(_boxes(p, p.integer(1, 3), 7.0, 5), "f32", constant=p.chance(0.3))
    attrs: dict[str, Any] = {"sample_ratio": 2} if name == "roi_align" else {}
    p.emit(name, x, rois, pooled_size=(p.integer(1, 3), 2), spatial_scale=p.choose([0.5, 1.0]), **attrs)


def _crop(p: RandomGraph) -> None:
    x = p.fresh((2, 2, 6, 7), "f32")
    boxes = p.given(_boxes(p, 3, 1.0, 4), "f32", constant=False)
    p.emit("crop_and_resize", x, boxes, p.fresh((3,), "i32", 0, 1), crop_size=(p.integer(1, 4), 3))


def _overlap(p: RandomGraph) -> None:
    n = p.integer(1, 6)
    p.emit("box_overlap", p.given(_boxes(p, n, 4.0, 4)[None], "f32", constant=False))


def _dft(p: RandomGraph) -> None:
    shape = p.shape(p.integer(1, 2), 24)
    p.emit("dft", p.fresh(shape, "f32"), p.fresh(shape, "f32"), inverse=p.chance(0.5))


def _stft(p: RandomGraph) -> None:
    size = p.choose([8, 12])
    attrs = {"n_fft": size, "hop_length": p.integer(2, 5), "win_length": size, "onesided": p.chance(0.5)}
    p.emit("stft", p.fresh((p.integer(1, 2), 40), "f32"), p.fresh((size,), "f32", 0.2, 1.0), **attrs)


DRAWERS: dict[str, Callable[[RandomGraph], object]] = {
    **{f"resize{n}d": partial(_resize, n) for n in (1, 2, 3)},
    **{n: partial(_regions, n) for n in ("roi_align", "roi_pool")},
    "grid_sample": _grid_sample,
    "affine_grid": _affine_grid,
    "crop_and_resize": _crop,
    "box_overlap": _overlap,
    "dft": _dft,
    "stft": _stft,
}
