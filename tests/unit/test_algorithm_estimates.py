"""Estimates of the algorithms of convolutions against times of one H100: order, size, and sound bounds."""

import pytest
from conv_algorithms import conv_module

from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.lower.algorithm_cost import estimated_s
from tilewright.passes.lower.convolution_layers import layers_of
from tilewright.targets import resolve_target

H100 = resolve_target("cuda:sm_90a")
NAMES = ("direct", "winograd2", "winograd4", "fft")
# data, filters, kernel, groups: microseconds of all kernels in one CUDA graph, by algorithm, with parameters
# that measuring finds (direct at 32 x 64 x 56 x 56: the model's own take 465)
MEASURED = [
    ((1, 64, 56, 56), 64, 3, 1, (19.8, 15.2, 20.4, 31.6)),
    ((1, 128, 28, 28), 128, 3, 1, (25.9, 14.9, 16.5, 30.3)),
    ((1, 256, 14, 14), 256, 3, 1, (19.7, 15.5, 13.7, 35.3)),
    ((1, 512, 7, 7), 512, 3, 1, (63.5, 14.0, 16.2, 44.3)),
    ((32, 256, 14, 14), 256, 3, 1, (390.9, 143.1, 120.1, 168.7)),
    ((32, 64, 56, 56), 64, 3, 1, (265.6, 290.2, 216.4, 359.6)),
    ((1, 64, 224, 224), 64, 3, 1, (117.0, 139.5, 139.4, 186.1)),
    ((8, 48, 35, 35), 64, 5, 1, (69.8, None, None, 58.1)),
    ((1, 128, 56, 56), 128, 7, 1, (278.9, None, None, 95.6)),
    ((1, 96, 56, 56), 96, 7, 96, (5.1, None, None, 26.7)),
]


@pytest.mark.parametrize(("data", "filters", "kernel", "groups", "us"), MEASURED)
def test_auto_takes_the_fastest_accurate_one_and_estimates_fit(data, filters, kernel, groups, us):
    weight = (filters, data[1] // groups, kernel, kernel)
    module = conv_module(
        data, weight, "direct", constant=True, padding=(kernel // 2,) * 4, groups=groups, arrays=False
    )
    (layer,) = layers_of(module.main)
    seconds = {name: 1e-6 * t for name, t in zip(NAMES, us, strict=True) if t is not None}
    for name, measured in seconds.items():
        assert layer.by(name, H100.hardware).bound_s(H100.hardware) <= measured
        whole = estimated_s(layer.conv, name, H100.hardware, constant_weight=True, parts=False)
        assert measured / 2 < whole < 2 * measured  # nothing was cut into parts when it was measured
        assert estimated_s(layer.conv, name, H100.hardware, constant_weight=True) <= whole
    context = PassContext(str(H100), H100.hardware, reproducer_folder=None)
    out = run_pipeline(module, Pipeline.parse("choose-algorithms{workspace=any}"), context)
    (chosen,) = (str(op["algorithm"]) for op in out.main.body.ops if op.name == "graph.conv2d")
    accurate = [t for name, t in seconds.items() if name != "winograd4" or name == chosen]
    assert seconds[chosen] <= 1.1 * min(accurate)  # winograd4 must win by more, for its errors


@pytest.mark.parametrize(("filters", "size", "cut"), [(32, 14, True), (64, 56, False)])
def test_direct_sums_are_compared_as_the_network_has_them(filters, size, cut):
    module = conv_module(
        (1, 128, size, size), (filters, 128, 3, 3), "direct", constant=True, padding=(1,) * 4, arrays=False
    )
    (layer,) = layers_of(module.main)
    whole, parts = (
        estimated_s(layer.conv, "direct", H100.hardware, constant_weight=True, parts=p) for p in (False, True)
    )
    assert (parts < 0.9 * whole) == cut
    kernels = [f for f in layer.by("direct", H100.hardware).module.funcs if f.name != "main"]
    context = PassContext(str(H100), H100.hardware, reproducer_folder=None)
    lowered = run_pipeline(module, Pipeline.parse("graph-to-tensor, split-reductions"), context)
    names = [op.name for op in lowered.main.body.ops]
    assert names.count("tensor.contract") == 1
    assert len(kernels) == 1 + ("tensor.map" in names[names.index("tensor.contract") :]) == 1 + cut
    cpu = resolve_target("opencl").hardware
    assert estimated_s(layer.conv, "direct", cpu, constant_weight=True) == estimated_s(
        layer.conv, "direct", cpu, constant_weight=True, parts=False
    )
