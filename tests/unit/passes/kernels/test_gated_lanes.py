"""Products of float32 with gates of units, on lanes: emulated kernels against the interpreter."""

import numpy as np
import pytest
from codegen_samples import run
from decision_samples import with_template
from gates_samples import CTX, H200, forward_and_backward, product, step_behind_a_join
from interpreted_kernels import assert_emulated, values_of
from matrix_samples import THREAD

from tilewright.costmodel import load_hardware
from tilewright.ir import Func, InputError, Module
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.decision import decision_of, estimate_of
from tilewright.passes.kernels.gated_lanes.choice import choose_gated_lanes
from tilewright.passes.kernels.gated_lanes.lowering import lower_gated_lanes
from tilewright.passes.kernels.gated_lanes.parameters import GatedLanesParameters
from tilewright.passes.kernels.gated_lanes.view import gated_lanes_view


def lowered(kernel: Func, *parameters: int) -> Func:
    thread = lower_gated_lanes(
        with_template(kernel, "product_gates_lanes", GatedLanesParameters(*parameters))
    )
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("network", "backward", "parameters", "batch"),
    [
        ("lstm", False, (32, 8, 8, 1), 32),  # whole sums: nothing to exchange
        ("lstm", False, (16, 4, 4, 8), 32),  # every thread has one vector of a sum
        ("lstm", True, (8, 8, 8, 4), 32),
        ("lstm", True, (32, 32, 4, 2), 32),
        ("gru", False, (16, 8, 4, 3), 32),  # vectors that sets do not divide
        ("gru", True, (5, 4, 1, 8), 5),  # fewer elements than threads
        ("lstm", False, (5, 8, 5, 4), 5),
    ],
)
def test_emulated_kernels_are_those_of_the_interpreter(network, backward, parameters, batch):
    kernel = forward_and_backward(network, "fp32", gated_lanes_view, batch)[backward]
    assert_emulated(kernel, lowered(kernel, *parameters), rtol=2e-5, atol=2e-5)


@pytest.mark.emulator
def test_weights_may_lie_in_columns_of_the_sum():
    kernel = product(8, 32, 16, "f32")
    inputs = values_of(kernel)
    (got,) = run(lowered(kernel, 8, 4, 4, 4), "emulator", inputs, seed=2).values()
    np.testing.assert_allclose(got, inputs[0] @ inputs[1].T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (step_behind_a_join("f16[1, 32, 32]"), "a product is not of float32"),
        (
            product(16, 36, 32, "f32"),
            "rows of the state f32[16, 36] have no 32, 64 or a multiple of 128 bytes",
        ),
        (product(16, 32, 38, "f32"), "16 rows of 38 units cannot be divided over blocks"),
    ],
)
def test_what_no_block_can_have_is_refused(kernel, reason):
    assert choose_gated_lanes(kernel, H200) == reason


def test_a_cpu_has_no_lanes_that_share_memory():
    kernel = product(16, 32, 32, "f32")
    assert (
        choose_gated_lanes(kernel, load_hardware("cpu-opencl")) == "the device has no lanes that share memory"
    )


def test_parameters_that_divide_nothing_are_refused():
    for parameters, clause in (
        ((24, 8, 1, 1), "expected rows that divide 32, got 24"),
        ((32, 6, 1, 1), "expected units by 4 that divide 32, got 6"),
        ((32, 8, 5, 1), "expected rows of a thread that divide 32, got 5"),
        ((32, 8, 8, 9), "expected sets among 1 to 8, got 9"),
        ((8, 4, 8, 1), "expected whole warps of threads, got 4"),
    ):
        with pytest.raises(InputError, match=clause):
            lowered(product(32, 32, 32, "f32"), *parameters)


def test_more_rows_take_longer_and_no_estimate_is_below_its_bound():
    seconds = []
    for rows in (8, 64, 256):
        chosen = choose_gated_lanes(product(rows, 512, 2048, "f32"), H200)
        assert isinstance(chosen, Func)
        decision = decision_of(chosen)
        assert decision is not None
        assert decision.cost is not None
        assert estimate_of(chosen) >= decision.cost.bound_s
        seconds.append(estimate_of(chosen))
    assert seconds == sorted(seconds)
