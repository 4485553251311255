"""Estimates of the algorithms of convolutions against times of one H200: order, size, and sound bounds."""

import pytest
from conv_algorithms import conv_module

from tilewright.costmodel import compiled_for, load_hardware
from tilewright.devices.targets import resolve_target
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.estimation import ESTIMATOR
from tilewright.passes.estimation.convolution_layers import layers_of
from tilewright.tools.compare_algorithms import ALGORITHMS, CONVOLUTIONS

H100 = resolve_target("cuda:sm_90a")
H200 = compiled_for(load_hardware("H200"), "sm_90a")
#: microseconds of one replay of all kernels by algorithm, with the parameters that the model chooses, as
#: `python -m tilewright.tools.compare_algorithms` printed them on an H200 on 2026-11-22
MEASURED = (
    (14.6, 15.6, 20.9, 25.2),
    (20.2, 14.7, 14.2, 26.1),
    (19.1, 13.5, 12.8, 31.6),
    (20.3, 14.6, 16.9, 48.9),
    (217.6, 129.3, 117.5, 179.6),
    (251.5, 285.6, 185.0, 244.4),
    (153.6, 124.8, 138.1, 133.5),
    (75.9, None, None, 44.5),
    (170.5, None, None, 84.7),
    (5.1, None, None, 35.5),
    (501.8, None, None, 43.2),
)
#: 1x64x224x224: the estimate of direct sums is a fifth too low, of winograd2 a quarter too high
MISSED = {CONVOLUTIONS[6]: 1.25}
#: direct sums of a 31 x 31 window take three times their estimate; the FFT is chosen all the same
UNDERESTIMATED = {(CONVOLUTIONS[10], "direct")}


@pytest.mark.parametrize(
    ("case", "us"), list(zip(CONVOLUTIONS, MEASURED, strict=True)), ids=[c.name for c in CONVOLUTIONS]
)
def test_auto_takes_the_fastest_accurate_one_and_estimates_fit(case, us):
    weight = (case.filters, case.data[1] // case.groups, case.size, case.size)
    around = (case.size // 2,) * 4
    module = conv_module(
        case.data, weight, "direct", constant=True, padding=around, groups=case.groups, arrays=False
    )
    (layer,) = layers_of(module.main)
    seconds = {name: 1e-6 * t for name, t in zip(ALGORITHMS, us, strict=True) if t is not None}
    assert tuple(seconds) == case.algorithms
    for name, measured in seconds.items():
        assert layer.by(name, H200).bound_s(H200) <= measured
        estimate = ESTIMATOR.algorithm_cost(layer.conv, name, H200, constant_weight=True).seconds
        assert measured / 2 < estimate < 2 * measured or (case, name) in UNDERESTIMATED
        assert (
            estimate
            <= ESTIMATOR.algorithm_cost(layer.conv, name, H200, constant_weight=True, parts=False).seconds
        )
    context = PassContext(str(H100), H200, reproducer_folder=None)
    out = run_pipeline(module, Pipeline.parse("choose-algorithms{workspace=any}"), context)
    (chosen,) = (str(op["algorithm"]) for op in out.main.body.ops if op.name == "graph.conv2d")
    accurate = [t for name, t in seconds.items() if name != "winograd4" or name == chosen]
    # winograd4 must win by more, for its errors
    assert seconds[chosen] <= MISSED.get(case, 1.1) * min(accurate)


@pytest.mark.parametrize(("filters", "size", "cut"), [(32, 14, True), (64, 56, False)])
def test_direct_sums_are_compared_as_the_network_has_them(filters, size, cut):
    module = conv_module(
        (1, 128, size, size), (filters, 128, 3, 3), "direct", constant=True, padding=(1,) * 4, arrays=False
    )
    (layer,) = layers_of(module.main)
    whole, parts = (
        ESTIMATOR.algorithm_cost(layer.conv, "direct", H100.hardware, constant_weight=True, parts=p).seconds
        for p in (False, True)
    )
    assert (parts < 0.9 * whole) == cut
    kernels = [f for f in layer.by("direct", H100.hardware).module.funcs if f.name != "main"]
    context = PassContext(str(H100), H100.hardware, reproducer_folder=None)
    lowered = run_pipeline(module, Pipeline.parse("graph-to-tensor, split-reductions"), context)
    names = [op.name for op in lowered.main.body.ops]
    assert names.count("tensor.contract") == 1
    assert len(kernels) == 1 + ("tensor.map" in names[names.index("tensor.contract") :]) == 1 + cut
    cpu = resolve_target("opencl").hardware
    assert (
        ESTIMATOR.algorithm_cost(layer.conv, "direct", cpu, constant_weight=True).seconds
        == ESTIMATOR.algorithm_cost(layer.conv, "direct", cpu, constant_weight=True, parts=False).seconds
    )
