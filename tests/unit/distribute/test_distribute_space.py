"""split-space: every partition of every op family equals the unpartitioned op, with no more exchanges."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.builder import Builder
from tilewright.ir.errors import InputError
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.ir.modules.compare import equal
from tilewright.ir.nodes import Func, Level, Module, Value
from tilewright.ir.types import TensorType
from tilewright.passes.graph.distribute.space.options import SpaceOptions
from tilewright.passes.graph.distribute.split_space import split_modules, split_space

IMAGE = (3, 4, 11, 9)
EXCHANGES = ("halo_exchange", "all_gather", "all_reduce", "reduce_scatter")


def image_op(name, weights=(), image=IMAGE, **attrs):
    """A pool of one element, which starts a split, then an op on its result and on constants."""
    x = Value(TensorType("f32", image), "x")
    rng = np.random.default_rng(1)
    arrays = {f"w{i}": rng.uniform(0.5, 1.5, s).astype(np.float32) for i, s in enumerate(weights)}
    b = Builder("test:op")
    layout = {"layout": attrs.get("data_layout", attrs.get("layout", "NCHW"))}
    y = b.value("graph.max_pool2d", x, pool_size=(1, 1), **layout)
    ws = [
        b.emit("graph.constant", (), {"name": n}, types=[TensorType("f32", a.shape)])[0]
        for n, a in arrays.items()
    ]
    results = b.emit(f"graph.{name}", (y, *ws), attrs)
    b.emit("graph.return", results)
    func = Func(Level.GRAPH, "main", b.block((x,)), tuple(r.type for r in results))
    return Module("m", (func,), constants=tw.ir.Constants(arrays))


def ranks_of(module, devices, **options):
    return split_modules(module, devices, SpaceOptions(gather="late", **options))


def equals(module, devices, seed=0, **options):
    """All ranks give what the whole module gives; returns the communications of rank 0."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(t.shape) for t in module.input_types]
    wanted = tw.interpret(module, *inputs, precision="fp64")
    modules = ranks_of(module, devices, **options)
    for got in interpret_ranks(modules, *inputs, precision="fp64"):
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-11)
    names = [op.name.removeprefix("graph.") for op in modules[0].main.body.ops]
    return [n for n in names if n in EXCHANGES]


WINDOWS = {
    "conv-3x3": ("conv2d", [(5, 4, 3, 3)], {"padding": (1, 1, 1, 1)}),
    "conv-strided-uneven": ("conv2d", [(5, 4, 3, 3)], {"strides": (2, 3), "padding": (1, 0, 0, 2)}),
    "conv-7x7-s2": ("conv2d", [(5, 4, 7, 7)], {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
    "conv-dilated": ("conv2d", [(5, 4, 3, 3)], {"dilation": (2, 2), "padding": (2, 1, 2, 3)}),
    "conv-groups": ("conv2d", [(6, 2, 3, 3)], {"groups": 2, "padding": (1, 1, 1, 1)}),
    "conv-depthwise": ("conv2d", [(4, 1, 3, 3)], {"groups": 4, "strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "conv-multiplier": ("conv2d", [(4, 2, 3, 3)], {"groups": 4, "padding": (1, 1, 1, 1)}),
    "conv-stride-over-kernel": ("conv2d", [(5, 4, 2, 1)], {"strides": (4, 3)}),
    "conv-nhwc": (
        "conv2d",
        [(3, 3, 9, 5)],
        {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": (1, 0, 1, 1)},
    ),
    "transposed": (
        "conv2d_transpose",
        [(4, 5, 4, 4)],
        {"strides": (2, 2), "padding": (1, 1, 1, 1), "kernel_layout": "IOHW"},
    ),
    "transposed-gaps": (
        "conv2d_transpose",
        [(4, 5, 2, 3)],
        {"strides": (3, 2), "dilation": (1, 2), "output_padding": (1, 0), "kernel_layout": "IOHW"},
    ),
    "max-ceil": ("max_pool2d", [], {"pool_size": (3, 3), "strides": (2, 2), "ceil_mode": True}),
    "avg-ceil": (
        "avg_pool2d",
        [],
        {"pool_size": (3, 2), "strides": (3, 2), "padding": (1, 1, 1, 1), "ceil_mode": True},
    ),
    "avg-ceil-with-pads": (
        "avg_pool2d",
        [],
        {
            "pool_size": (3, 4),
            "strides": (2, 3),
            "padding": (1, 2, 1, 0),
            "ceil_mode": True,
            "count_include_pad": True,
        },
    ),
    "nearest": (
        "resize2d",
        [],
        {"size": (22, 27), "method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"},
    ),
    "bilinear": ("resize2d", [], {"size": (22, 18)}),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("axis", ["h", "w", "batch", "channels"])
def test_windows(name, axis):
    op, weights, attrs = WINDOWS[name]
    module = image_op(op, weights, **attrs)
    for devices in (2, 3, 4) if axis in "hw" else (3,):
        found = equals(module, devices, axis=axis)
        if axis != "channels":
            assert found.count("all_gather") == 1, found
            assert set(found) <= {"halo_exchange", "all_gather"}


OTHERS = {
    "relu": ("relu", [], {}),
    "bias": ("bias_add", [(4,)], {}),
    "prelu": ("prelu", [(4,)], {}),
    "norm": ("batch_norm", [(4,)] * 4, {}),
    "broadcast": ("add", [(4, 1, 9)], {}),
    "softmax": ("softmax", [], {"axis": 1}),
    "layer-norm": ("layer_norm", [(4,)] * 2, {"axis": 1}),
    "instance-norm": ("instance_norm", [(4,)] * 2, {}),
    "lrn": ("lrn", [], {}),
    "pad": ("pad", [], {"pad_before": (0, 1, 2, 0), "pad_after": (0, 0, 1, 3), "pad_value": 2.0}),
    "reflect": ("pad", [], {"pad_before": (0, 0, 2, 0), "pad_after": (0, 0, 1, 0), "pad_mode": "reflect"}),
    "transpose": ("transpose", [], {"axes": (0, 2, 3, 1)}),
    "reshape": ("reshape", [], {"newshape": (3, 2, 2, 99)}),
    "flatten": ("batch_flatten", [], {}),
    "slice": ("strided_slice", [], {"begin": (0, 1, 1, 8), "size": (3, 2, 4, 9), "strides": (1, 1, 2, -1)}),
    "split": ("split", [], {"indices": (1, 3), "axis": 1}),
    "concat": ("concatenate", [(3, 4, 11, 9), (3, 4, 11, 9)], {"axis": 2}),
    "concat-channels": ("concatenate", [(3, 2, 11, 9)], {"axis": 1}),
    "stack": ("stack", [(3, 4, 11, 9)], {"axis": 1}),
    "global": ("global_avg_pool2d", [], {}),
    "global-max": ("global_max_pool2d", [], {}),
    "adaptive": ("adaptive_avg_pool2d", [], {"output_size": (1, 3)}),
    "mean": ("mean", [], {"axis": (2, 3), "keepdims": True}),
    "sum": ("sum", [], {"axis": (-1, 1)}),
    "max": ("max", [], {"axis": (2,)}),
    "variance": ("variance", [(4, 1, 9)], {"axis": (1, 3)}),
    "tile": ("tile", [], {"reps": (1, 1, 2, 1)}),
    "repeat": ("repeat", [], {"repeats": 2, "axis": 3}),
    "cumsum": ("cumsum", [], {"axis": 2}),
    "matmul": ("matmul", [(4, 9, 6)], {}),
    "matmul-transposed": ("matmul", [(4, 6, 11)], {"transpose_a": True, "transpose_b": True}),
    "dense": ("dense", [(7, 9)], {}),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("axis", ["h", "w", "batch", "channels"])
def test_other_ops(name, axis):
    op, weights, attrs = OTHERS[name]
    equals(image_op(op, weights, **attrs), 3, axis=axis)


@pytest.mark.parametrize(
    ("name", "axis", "wanted"),
    [
        ("relu", "h", ["all_gather"]),
        ("transpose", "h", ["all_gather"]),
        ("global", "h", ["all_reduce"]),
        ("global-max", "w", ["all_reduce"]),
        ("mean", "h", ["all_reduce"]),
        ("max", "w", ["all_gather"]),
        ("softmax", "h", ["all_gather"]),
        ("pad", "h", ["halo_exchange", "all_gather"]),
        ("reshape", "batch", ["all_gather"]),
        ("dense", "h", ["all_gather"]),
        ("cumsum", "h", ["all_gather"]),
        ("cumsum", "w", ["all_gather"]),
    ],
)
def test_exchanges_are_no_more_than_needed(name, axis, wanted):
    op, weights, attrs = OTHERS[name]
    assert equals(image_op(op, weights, **attrs), 2, axis=axis) == wanted


def test_unequal_devices_and_devices_without_rows():
    module = image_op("conv2d", [(5, 4, 3, 3)], padding=(1, 1, 1, 1))
    equals(module, 3, axis="h", speeds="1,3,0.5")
    equals(module, 4, axis="batch")
    equals(image_op("conv2d", [(5, 4, 3, 3)], (1, 4, 3, 9), padding=(1, 1, 1, 1)), 4, axis="h")
    equals(image_op("global_avg_pool2d", (), (1, 4, 3, 9)), 4, axis="h")
    equals(image_op("max", (), (1, 4, 3, 9), axis=(2,)), 4, axis="h")


def test_filters_are_sliced_at_compile_time():
    module = image_op("conv2d", [(6, 4, 3, 3)], padding=(1, 1, 1, 1))
    for r, part in enumerate(ranks_of(module, 3, plan="1:channels", axis="h")):
        (weight,) = part.constants.values()
        np.testing.assert_array_equal(weight, module.constants["w0"][2 * r : 2 * r + 2])


def test_input_channels_add_up_and_stay_in_rows():
    module = image_op("conv2d", [(6, 4, 1, 1)], strides=(3, 3))
    assert equals(module, 2, axis="channels") == ["reduce_scatter", "all_gather"]
    wide = image_op("conv2d", [(64, 4, 1, 1)])
    assert equals(wide, 2, axis="channels") == ["all_gather", "all_gather"]


def test_plans_replace_rows_and_directions():
    module = image_op("conv2d", [(5, 4, 3, 3)], padding=(1, 1, 1, 1))
    assert equals(module, 2, plan="0:h=0-7,5-11; 1:h=0-6,6-11") == ["all_gather"]
    assert equals(module, 2, plan="0:whole; 1:w=0-8,8-9") == ["all_gather"]
    assert equals(module, 3, plan="0:batch; 1:whole") == ["all_gather"]
    assert (
        equals(module, 4, plan="0:h=0-7,8-8,4-11,0-0; 1:h=0-5,5-11,11-11,11-11").count("halo_exchange") == 1
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2}, r"expected devices >= 1 and a rank in \[0, devices\), got 2 and 2"),
        ({"speeds": "1,2,3"}, "'speeds' expects 2 numbers, got 3"),
        ({"speeds": "1,-2"}, "'speeds' expects numbers of at least 0, got '1,-2'"),
        ({"speeds": "1,fast"}, "'speeds' expects numbers such as 1,2,1, got '1,fast'"),
        ({"tflops": 0.0}, "expected positive rates"),
        ({"plan": "1:h"}, "names layer 1; @main has 1 layers"),
        ({"plan": "0:h; 0:w"}, "names layer 0 twice"),
        ({"plan": "0:depth"}, "expected a direction among h, w, batch, channels, sequence, got 'depth'"),
        ({"plan": "0-h"}, r"expects entries as 3:h=0-57,57-112 or 5:whole, got '0-h'"),
        ({"plan": "0:h=0-5,6-11"}, r"rising intervals that cover the 11 rows of graph.max_pool2d"),
        ({"plan": "0:sequence"}, r"splits graph.max_pool2d \[test:op\] along sequence, which it cannot"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(InputError, match=message):
        split_space(**{"devices": 2, **options})(image_op("relu"))


def test_small_tails_run_whole_where_gathering_is_cheaper():
    module = image_op("conv2d", [(5, 4, 3, 3)], padding=(1, 1, 1, 1))
    dear, free = (split_space(devices=2, latency_us=t, tflops=1e-4)(module) for t in (1e6, 0.0))
    assert not any("communicate" in tw.ir.op_def(op.name).effects for op in dear.main.body.ops)
    assert any(op.name == "graph.halo_exchange" for op in free.main.body.ops)


def test_the_pass_makes_the_same_modules_each_rank_by_itself():
    module = image_op("conv2d", [(5, 4, 3, 3)], padding=(1, 1, 1, 1))
    together = split_modules(module, 2, SpaceOptions(axis="w", speeds="1,2", gather="late"))
    for rank, wanted in enumerate(together):
        alone = split_space(devices=2, rank=rank, axis="w", speeds="1,2", gather="late")(module)
        assert equal(alone, wanted)
        assert alone.constants.keys() == wanted.constants.keys()
