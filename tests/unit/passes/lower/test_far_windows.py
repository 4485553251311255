"""Convolutions whose windows reach far: few channels of them fit into shared memory at a time."""

import numpy as np
import pytest

import tilewright as tw


def far(dilation, channels=16, width=48):
    """A row convolved with three taps a dilation apart."""
    text = f"""
    module @far {{
      graph.func @main(%x: f32[1, {channels}, 1, {width + 2 * dilation}]) -> f32[1, 8, 1, {width}] {{
        %w = graph.constant(name = "w") : f32[8, {channels}, 1, 3]
        %0 = graph.conv2d(%x, %w, dilation = [1, {dilation}]) : f32[1, 8, 1, {width}]
        graph.return(%0)
      }}
    }}
    """
    weight = np.random.default_rng(0).standard_normal((8, channels, 1, 3)).astype(np.float32)
    return tw.parse(text).with_constants(tw.ir.Constants({"w": weight}))


@pytest.mark.emulator
def test_far_windows_are_right():
    module = far(3500)
    x = np.random.default_rng(1).standard_normal(module.input_types[0].shape).astype(np.float32)
    (wanted,) = tw.interpret(module, x)
    with tw.compile(module, target="emulator") as exe:
        (got,) = exe(x)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_windows_that_no_block_holds_say_so():
    with pytest.raises(
        tw.InputError, match=r"no implementation parameters of ContractProblem\(.*dilation_w=9000"
    ):
        tw.compile(far(9000), target="null")
