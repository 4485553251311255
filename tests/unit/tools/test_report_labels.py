"""Names of points in the roofline: each beside its point or with a line to it, and no line through a name."""

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")

from tilewright.tools.report import roofline_figure as roofline  # noqa: E402


class Kernel:
    """What the figure reads of a kernel, at an intensity and a rate."""

    def __init__(self, name, intensity, rate, total_s):
        self.name, self.total_s = name, total_s
        self.operations, self.bytes = intensity * 1e6, 1e6
        self.seconds = self.operations / rate


def labels(kernels):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.4))
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlim=(0.1, 1000), ylim=(1e8, 1e12))
    figure.draw_without_rendering()
    roofline._labels(axes, list(enumerate(kernels, 1)), sum(k.total_s for k in kernels))
    return axes.texts


def test_crowded_names_have_lines_to_their_points_which_cross_no_name():
    kernels = [Kernel(f"conv2d_bias_add_relu_{i}", 50 + i, 9e10 + 1e9 * i, 1e-3) for i in range(5)]
    texts = labels(kernels)
    assert len(texts) == 5
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    lines = [t for t in texts if t.arrow_patch is not None]
    assert lines
    renderer = FigureCanvasAgg(texts[0].figure).get_renderer()
    boxes = {t: Text.get_window_extent(t, renderer) for t in texts}  # without the line
    for text in lines:
        text.update_positions(renderer)
        path = text.arrow_patch.get_path().transformed(text.arrow_patch.get_transform())
        (x0, y0), (x1, y1) = path.vertices[0], path.vertices[-1]
        for share in np.linspace(0.2, 1, 9):
            x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
            assert not any(b.shrunk(0.95, 0.8).contains(x, y) for t, b in boxes.items() if t is not text)


def test_a_lone_name_needs_no_line():
    (text,) = labels([Kernel("softmax", 1.0, 1e9, 1e-3)])
    assert text.arrow_patch is None
