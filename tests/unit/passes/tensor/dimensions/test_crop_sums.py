"""Sums without what is outside at every point: how much is left, and that results stay."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Module, Op, parse, verify
from tilewright.ir.tensor.ops import dims, fills
from tilewright.passes import PassContext, Pipeline, run_pipeline


def convolution(
    size: int, taps: int, stride: int = 1, pad: int = 1, step: int = 1, turn: bool = False
) -> Module:
    """One row of images of `size` points: taps are `step` apart, backwards where turned."""
    points = (size + 2 * pad - step * (taps - 1) - 1) // stride + 1
    tap = f"{step * (taps - 1)} - {step} * r" if turn else f"{step} * r"
    return parse(
        f"""module @m {{
          tensor.func @main(%x: f32[3, 5, {size}], %w: f32[4, 5, {taps}]) -> f32[3, 4, {points}] {{
            %0 = tensor.contract(%x, %w, par = (n: 3, k: 4, y: {points}), red = (c: 5, r: {taps}),
                reads = [[n, c, {stride} * y + {tap} - {pad}], [k, c, r]],
                fill = [0.0, none]) : f32[3, 4, {points}] {{
              ^(%a: f32, %b: f32, %acc: f32)
              %1 = scalar.fma(%a, %b, %acc) : f32
              scalar.yield(%1)
            }}
            tensor.return(%0)
          }}
        }}"""
    )


def cropped(module: Module) -> Module:
    new = run_pipeline(module, Pipeline.parse("crop-sums"), PassContext())
    verify(new)
    return new


def contraction_of(module: Module) -> Op:
    return module.main.body.ops[0]


def needed_taps(size: int, taps: int, stride: int, pad: int, step: int, turn: bool) -> list[int]:
    points = (size + 2 * pad - step * (taps - 1) - 1) // stride + 1
    at = [step * (taps - 1) - step * r if turn else step * r for r in range(taps)]
    return [r for r in range(taps) if any(0 <= stride * y + at[r] - pad < size for y in range(points))]


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(
    ("size", "taps", "stride", "pad"), [(1, 3, 1, 1), (2, 3, 2, 1), (1, 7, 2, 3), (2, 5, 1, 4)]
)
def test_as_many_taps_are_left_as_any_point_needs(size, taps, stride, pad, step, turn):
    if size + 2 * pad < step * (taps - 1) + 1:
        pad += taps
    module = convolution(size, taps, stride, pad, step, turn)
    new = cropped(module)
    needed = needed_taps(size, taps, stride, pad, step, turn)
    assert dims(contraction_of(new), "red").get("r", 1) == needed[-1] - needed[0] + 1
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5, size), np.float32)
    w = rng.standard_normal((4, 5, taps), np.float32)
    np.testing.assert_allclose(
        tw.interpret(new, x, w)[0], tw.interpret(module, x, w)[0], rtol=1e-5, atol=1e-5
    )


def test_nothing_is_filled_where_all_is_inside():
    new = cropped(convolution(1, 3))
    assert set(fills(contraction_of(new))) == {None}
    assert dims(contraction_of(new), "red") == {"c": 5}


def test_a_convolution_of_larger_images_stays():
    module = convolution(9, 3)
    assert cropped(module) is module


def test_a_sum_keeps_a_dimension():
    text = """module @m {
      tensor.func @main(%x: f32[3, 1], %w: f32[3]) -> f32[3, 1] {
        %0 = tensor.contract(%x, %w, par = (n: 3, y: 1), red = (r: 3), reads = [[n, y + r - 1], [r]],
            fill = [0.0, none]) : f32[3, 1] {
          ^(%a: f32, %b: f32, %acc: f32)
          %1 = scalar.fma(%a, %b, %acc) : f32
          scalar.yield(%1)
        }
        tensor.return(%0)
      }
    }"""
    new = cropped(parse(text))
    assert dims(contraction_of(new), "red") == {"r": 1}
    x, w = np.ones((3, 1), np.float32), np.array([2, 3, 4], np.float32)
    np.testing.assert_array_equal(tw.interpret(new, x, w)[0], 3 * x)


def test_other_fills_are_no_reason():
    module = parse(tw.show(convolution(1, 3)).replace("fill = [0.0", "fill = [1.0"))
    assert cropped(module) is module
