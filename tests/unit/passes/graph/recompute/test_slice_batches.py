"""slice-batches: the first ops on parts of the batch, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Module
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.memory_headroom import peak_bytes
from tilewright.passes.estimation.service import ESTIMATOR
from tilewright.passes.graph.recompute.slice_batches import sliced_to

H200 = PassContext(target="cuda:sm_90a:h200", estimator=ESTIMATOR)
#: two convolutions on large images, pooled, and a residual block on small ones behind them
NET = """
module @net {{
  graph.func @main(%x: f16[{n}, 32, 112, 112], %w: f16[64, 32, 3, 3], %v: f16[64, 64, 3, 3])
      -> f16[{n}, 64, 28, 28] {{
    %0 = graph.conv2d(%x, %w, padding = [1, 1, 1, 1]) : f16[{n}, 64, 112, 112]
    %1 = graph.relu(%0) : f16[{n}, 64, 112, 112]
    %2 = graph.conv2d(%1, %v, padding = [1, 1, 1, 1]) : f16[{n}, 64, 112, 112]
    %3 = graph.relu(%2) : f16[{n}, 64, 112, 112]
    %4 = graph.max_pool2d(%3, pool_size = [4, 4], strides = [4, 4]) : f16[{n}, 64, 28, 28]
    %5 = graph.conv2d(%4, %v, padding = [1, 1, 1, 1]) : f16[{n}, 64, 28, 28]
    %6 = graph.add(%4, %5) : f16[{n}, 64, 28, 28]
    graph.return(%6)
  }}
}}
"""


def net(n: int) -> Module:
    return tw.parse(NET.format(n=n))


def sliced(module: Module, options: str = "") -> Module:
    return run_pipeline(module, Pipeline.parse(f"slice-batches{options}"), H200)


def joins(module: Module) -> int:
    return sum(op.name == "graph.concatenate" for op in module.main.body.ops)


def kernels_peak(module: Module) -> int:
    return peak_bytes(ESTIMATOR.stored_kernels(module, H200))


def test_large_images_are_made_in_parts_and_small_ones_whole() -> None:
    whole = net(128)
    parts = sliced(whole)
    assert joins(parts) == 1
    assert sum(op.name == "graph.conv2d" for op in parts.main.body.ops) in (5, 9)
    # Half of both large arrays, and what is joined.
    assert kernels_peak(parts) <= 0.6 * kernels_peak(whole)


def test_kernels_run_part_by_part() -> None:
    """Without an order of their own, the kernels of equal depth would hold all parts at once."""
    module = net(64)
    large = 64 * 64 * 112 * 112 * 2
    assert kernels_peak(module) == 2 * large
    assert kernels_peak(sliced_to(module, 5, 4) or module) <= 2 * large // 4 + 64 * 64 * 28 * 28 * 2


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (1, "{above=0}"),  # one sample has no parts
        (3, "{above=0}"),  # an odd batch has no equal parts
        (2, ""),  # little is alive
        (64, "{slower=0.0, worth=1e9}"),  # no time may be given
        (64, "{share=0.1}"),  # not enough is saved
    ],
)
def test_the_batch_stays_whole(n: int, options: str) -> None:
    module = net(n)
    assert sliced(module, options) is module


def test_an_op_that_needs_all_samples_ends_the_slices() -> None:
    module = tw.parse(
        "module @net { graph.func @main(%x: f32[4, 8]) -> f32[4, 8] { %0 = graph.relu(%x) : f32[4, 8]\n"
        "%1 = graph.softmax(%0, axis = 0) : f32[4, 8]\n graph.return(%1) } }"
    )
    assert sliced_to(module, 1, 2) is not None
    assert sliced_to(module, 2, 2) is None


def test_results_are_the_same_bits() -> None:
    module = tw.parse(NET.format(n=4).replace("112", "16").replace("28", "4").replace("f16", "f32"))
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params]
    parts = sliced_to(module, 5, 2)
    assert parts is not None
    with tw.compile(module, target="reference") as whole, tw.compile(parts, target="reference") as other:
        assert np.array_equal(whole(*arrays), other(*arrays))
