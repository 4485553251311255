"""Backward operators of torch taken apart: the parts compute what the operators compute, in float64."""

from itertools import product

import pytest

torch = pytest.importorskip("torch")

from tilewright.frontends.torch import backward  # noqa: E402

aten = torch.ops.aten
TABLE = backward.decompositions()


def same(operator, *args, tolerance=1e-10):
    results = operator(*args), TABLE[operator](*args)
    for wanted, got in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(transposed):
    options = product((1, 2), (1, 2, 3), (0, 1, 2), (1, 2), ((11, 9), (7, 12)))
    for groups, stride, padding, dilation, size in options:
        channels, units = 4, 6
        outer, inner = (channels, units) if transposed else (units, channels)
        x, weight = random(3, channels, *size), random(outer, inner // groups, 3, 2)
        rest = [int(transposed and stride > 1)] * 2
        options = [[stride] * 2, [padding] * 2, [dilation] * 2, transposed, rest, groups]
        g = torch.randn_like(aten.convolution(x, weight, None, *options))
        same(aten.convolution_backward.default, g, x, weight, [units], *options, [True] * 3)


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks(rank):
    x, weight = random(2, 3, *(5,) * rank), random(4, 3, *(2,) * rank)
    options = [[1] * rank, [1] * rank, [1] * rank, False, [0] * rank, 1]
    g = torch.randn_like(aten.convolution(x, weight, None, *options))
    for mask in product((False, True), repeat=3):
        results = aten.convolution_backward(g, x, weight, [4], *options, list(mask))
        got = TABLE[aten.convolution_backward.default](g, x, weight, [4], *options, list(mask))
        for a, b, asked in zip(results, got, mask, strict=True):
            if asked:
                torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
            else:
                assert b is None


def test_average_pooling():
    options = product((2, 3), (1, 2, 3), (0, 1), (False, True), (False, True), (None, 5))
    for taps, stride, padding, ceiling, padded, divisor in options:
        x = random(2, 3, 9, 10)
        rest = [[taps, taps], [stride, stride], [padding, padding], ceiling, padded, divisor]
        same(aten.avg_pool2d_backward.default, torch.randn_like(aten.avg_pool2d(x, *rest)), x, *rest)
    x = random(3, 8, 6)  # without samples, strides as the window
    rest = [[2, 3], [], [0], False, True, None]
    same(aten.avg_pool2d_backward.default, torch.randn_like(aten.avg_pool2d(x, *rest)), x, *rest)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (5, 2), (7, 7), (12, 3)])
def test_adaptive_pooling_and_resizing(size):
    g, x = random(2, 3, *size), random(2, 3, 9, 10)
    same(aten._adaptive_avg_pool2d_backward.default, g, x)
    for scales in ((), (size[0] / 9, size[1] / 10)):
        same(aten.upsample_nearest2d_backward.default, g, [*size], [2, 3, 9, 10], *scales)
        for corners in (False, True):
            bilinear = aten.upsample_bilinear2d_backward.default
            same(bilinear, g, [*size], [2, 3, 9, 10], corners, *scales, tolerance=1e-5)


def test_dropout_scales_what_it_keeps():
    x = random(40, 30)
    torch.manual_seed(0)
    y, mask = TABLE[aten.native_dropout.default](x, 0.3, True)
    torch.testing.assert_close(y, x * mask / 0.7)
    assert abs(mask.double().mean() - 0.7) < 0.06
    for p, train, kept in ((0.3, False, True), (0.0, True, True), (1.0, True, False)):
        y, mask = TABLE[aten.native_dropout.default](x, p, train)
        assert torch.equal(y, x * kept)
        assert bool(mask.all()) is kept


@pytest.mark.parametrize("padding", [(1, 2, 0, 3), (-1, 2, 1, -2)])
def test_padding_with_the_nearest(padding):
    x = random(2, 3, 6, 5)
    g = torch.randn_like(aten.replication_pad2d(x, padding))
    same(aten.replication_pad2d_backward.default, g, x, [*padding])
