"""Small groups of convolutions are joined where the cost model finds that this takes less time."""

import numpy as np
import pytest

from tilewright.devices.targets import resolve_target
from tilewright.ir import Constants, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline


def groups_of(image: str, filters: int, each: int, groups: int, target: str) -> int:
    """The groups of a 3x3 convolution after the pass."""
    text = f"""module @net {{
      graph.func @main(%x: {image}) -> {image} {{
        %0 = graph.constant(name = "w") : f16[{filters}, {each}, 3, 3]
        %1 = graph.conv2d(%x, %0, padding = [1, 1, 1, 1], groups = {groups}) : {image}
        graph.return(%1)
      }}
    }}"""
    device = resolve_target(target)
    context = PassContext(str(device), device.hardware)
    module = parse(text)
    weights = np.ones((filters, each, 3, 3), np.float16)
    module = module.with_constants(Constants({"w": weights}))
    done = run_pipeline(module, Pipeline.parse("join-groups"), context)
    (op,) = [op for op in done.main.body.ops if op.name == "graph.conv2d"]
    return op.integer("groups")


@pytest.mark.parametrize(
    ("image", "filters", "each", "groups", "target", "wanted"),
    [
        ("f16[64, 256, 28, 28]", 256, 4, 64, "cuda:sm_90a", 4),
        ("f16[64, 1024, 7, 7]", 1024, 32, 32, "cuda:sm_90a", 32),  # rows of 64 bytes do
        ("f16[64, 256, 28, 28]", 256, 4, 64, "opencl", 64),
    ],
)
def test_the_model_decides(image, filters, each, groups, target, wanted):
    assert groups_of(image, filters, each, groups, target) == wanted
