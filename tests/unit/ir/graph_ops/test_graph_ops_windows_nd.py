"""Convolutions and pools of one to three dimensions, and their relatives, at every level."""

import numpy as np
import pytest
from decision_samples import parameters
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Builder, Func, InputError, Level, Module, TensorType, Value, dtype_name, op_def
from tilewright.ir.tensor.ops import dims
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.kernel_problem import contract_roles

RNG = np.random.default_rng(0)
SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def randoms(*shape, dtype=np.float32):
    return RNG.uniform(-1, 1, shape).astype(dtype)


def module_of(name, arrays, **attrs):
    params = tuple(Value(TensorType(dtype_name(a.dtype), a.shape), f"x{i}") for i, a in enumerate(arrays))
    b = Builder("test:op")
    results = b.emit(f"graph.{name}", params, attrs)
    b.do("graph.return", *results)
    types = tuple(r.type for r in results)
    return Module("m", (Func(Level.GRAPH, "main", b.block(params), types),))


def run(name, arrays, **attrs):
    """The reference's result, after comparing the tensor level with it."""
    module = module_of(name, arrays, **attrs)
    (wanted,) = tw.interpret(module, *arrays)
    lowered = run_pipeline(module, Pipeline.parse("graph-to-tensor"), PassContext(verify_each=True))
    same(tw.interpret(lowered, *arrays)[0], wanted)
    return wanted


def compiled(name, arrays, **attrs):
    """Check the compiled op against the reference; gives the kernels at the tensor level."""
    module = module_of(name, arrays, **attrs)
    with tw.compile(module, target="opencl") as exe:
        same(exe(*arrays)[0], tw.interpret(module, *arrays)[0])
    return lower(module, resolve_target("opencl")).tensor


def same(got, wanted):
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    tolerance = 1e-2 if wanted.dtype.itemsize == 2 else 2e-5
    np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=tolerance, atol=tolerance)


def embedded(x, at):
    """[N, C, spatial...] as an image of three dimensions with 1 element along those not in `at`."""
    shape = [*x.shape[:2], 1, 1, 1]
    for d, n in zip(at, x.shape[2:], strict=True):
        shape[2 + d] = n
    return x.reshape(shape)


def lifted(values, at, neutral):
    """Values per dimension in `at` as values of three dimensions (twice as many: before, then after)."""
    out = [neutral] * (3 * (len(values) // len(at)))
    for i, v in enumerate(values):
        out[at[i % len(at)] + 3 * (i // len(at))] = v
    return tuple(out)


geometry = {
    "spatial": st.sampled_from([1, 2]),
    "strides": st.tuples(st.integers(1, 3), st.integers(1, 2)),
    "padding": st.tuples(*[st.integers(0, 2)] * 4),
    "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
}


def attributes(spatial, strides, padding, dilation):
    before, after = padding[:spatial], padding[2 : 2 + spatial]
    return {"strides": strides[:spatial], "padding": (*before, *after), "dilation": dilation[:spatial]}


@settings(max_examples=7, deadline=None)
@given(groups=st.integers(1, 2), transposed=st.booleans(), **geometry)
def test_convolutions_are_those_of_three_dimensions(groups, transposed, spatial, strides, padding, dilation):
    attrs = attributes(spatial, strides, padding, dilation)
    sizes, taps, at = (6, 5)[:spatial], (3, 2)[:spatial], (0, 2)[:spatial]
    x = randoms(2, 2 * groups, *sizes)
    w = randoms(2 * groups, 3, *taps) if transposed else randoms(3 * groups, 2, *taps)
    kind = "_transpose" if transposed else ""
    got = run(f"conv{spatial}d{kind}", [x, w], groups=groups, **attrs)
    wide = {k: lifted(v, at, 0 if k == "padding" else 1) for k, v in attrs.items()}
    images = [embedded(v, at) for v in (x, w)]
    wanted = run(f"conv3d{kind}", images, groups=groups, **wide)
    same(got, wanted.reshape(got.shape))


@settings(max_examples=7, deadline=None)
@given(kind=st.sampled_from(["max", "avg"]), ceil=st.booleans(), include=st.booleans(), **geometry)
def test_pools_are_those_of_three_dimensions(kind, ceil, include, spatial, strides, padding, dilation):
    attrs = {**attributes(spatial, strides, padding, dilation), "pool_size": (3, 2)[:spatial]}
    at = (0, 2)[:spatial]
    x = randoms(2, 2, *(7, 6)[:spatial])
    more = {"ceil_mode": ceil} | ({"count_include_pad": include} if kind == "avg" else {})
    got = run(f"{kind}_pool{spatial}d", [x], **attrs, **more)
    wide = {k: lifted(v, at, 0 if k == "padding" else 1) for k, v in attrs.items()}
    wanted = run(f"{kind}_pool3d", [embedded(x, at)], **wide, **more)
    same(got, wanted.reshape(got.shape))


@pytest.mark.parametrize("spatial", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_layouts_are_transposes_of_one_another(spatial, transposed):
    letters = SPATIAL[spatial]
    x, w = randoms(1, 4, *(5, 4, 3)[:spatial]), randoms(4, 2, *(2, 3, 2)[:spatial])
    name = f"conv{spatial}d" + ("_transpose" if transposed else "")
    first = f"{'IO' if transposed else 'OI'}{letters}"
    wanted = run(name, [x, w], groups=2)
    for data in (f"N{letters}C", f"{letters}CN"):
        for kernel in (f"{letters}IO", f"O{letters}I", f"{letters}OI", f"IO{letters}", f"OI{letters}"):
            turned = w.transpose([first.index(c) for c in kernel])
            moved = x.transpose([f"NC{letters}".index(c) for c in data])
            got = run(name, [moved, turned], groups=2, data_layout=data, kernel_layout=kernel)
            same(got.transpose([data.index(c) for c in f"NC{letters}"]), wanted)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_global_and_adaptive_pools(kind):
    x = randoms(2, 3, 5, 4, 3)
    fold = np.max if kind == "max" else np.mean
    same(run(f"global_{kind}_pool3d", [x]), fold(x, axis=(2, 3, 4), keepdims=True))
    same(run(f"adaptive_{kind}_pool3d", [x], output_size=(1, 1, 3)), fold(x, axis=(2, 3))[:, :, None, None])
    line = x.reshape(2, 3, 60).transpose(0, 2, 1)
    same(run(f"global_{kind}_pool1d", [line], layout="NWC"), fold(line, axis=1, keepdims=True))
    cells = run(f"adaptive_{kind}_pool1d", [line], output_size=(7,), layout="NWC")
    same(cells[:, 1], fold(line[:, 8:18], axis=1))  # element 60 / 7 rounded down to 120 / 7 rounded up


def test_integer_pools_round_towards_zero():
    x = np.array([[[-3, -4, 1, 1, 1]]], np.int32)
    assert run("adaptive_avg_pool1d", [x], output_size=(2,)).tolist() == [[[-2, 1]]]
    assert run("global_avg_pool1d", [x]).item() == 0
    assert run("avg_pool1d", [x], pool_size=(2,)).ravel().tolist() == [-3, -1, 1, 1]


def test_windows_of_nothing_but_padding():
    x = randoms(1, 1, 2, dtype=np.float16)
    wanted = [float(np.finfo(np.float16).min), float(x.max())]
    got = run("max_pool1d", [x], pool_size=(2,), strides=(2,), padding=(2, 0))
    assert got.ravel().tolist() == wanted
    assert run("avg_pool1d", [x], pool_size=(2,), strides=(2,), padding=(2, 0)).ravel()[0] == 0


COMPILED = {
    "conv1d": ("conv1d", [(2, 6, 19), (8, 3, 3)], {"groups": 2, "strides": (2,), "padding": (2, 1)}),
    "conv1d-nwc": (
        "conv1d",
        [(1, 19, 4), (5, 4, 6)],
        {"data_layout": "NWC", "kernel_layout": "WIO", "dilation": (2,)},
    ),
    "conv3d": (
        "conv3d",
        [(1, 4, 6, 7, 8), (6, 4, 3, 3, 3)],
        {"padding": (1, 1, 1, 1, 1, 1), "strides": (2, 1, 1)},
    ),
    "conv3d-ndhwc": (
        "conv3d",
        [(2, 4, 5, 6, 4), (2, 3, 2, 2, 8)],
        {"data_layout": "NDHWC", "kernel_layout": "DHWIO", "groups": 2},
    ),
    "conv3d-depthwise": ("conv3d", [(1, 3, 5, 5, 5), (3, 1, 3, 3, 3)], {"groups": 3}),
    "conv1d-transpose": (
        "conv1d_transpose",
        [(1, 4, 9), (4, 3, 4)],
        {"strides": (3,), "padding": (1, 2), "output_padding": (1,)},
    ),
    "conv2d-transpose": (
        "conv2d_transpose",
        [(1, 8, 5, 6), (8, 4, 4, 4)],
        {"strides": (2, 2), "padding": (1,) * 4},
    ),
    "conv3d-transpose": ("conv3d_transpose", [(1, 2, 3, 4, 3), (2, 3, 2, 3, 2)], {"strides": (2, 1, 2)}),
    "max-pool3d": ("max_pool3d", [(1, 2, 6, 7, 5)], {"pool_size": (2, 3, 2), "padding": (1, 1, 0, 0, 1, 1)}),
    "avg-pool1d": ("avg_pool1d", [(2, 3, 17)], {"pool_size": (4,), "strides": (3,), "ceil_mode": True}),
    "adaptive-avg-pool3d": ("adaptive_avg_pool3d", [(1, 2, 5, 6, 7)], {"output_size": (2, 3, 4)}),
    "global-avg-pool3d": ("global_avg_pool3d", [(1, 4, 3, 5, 7)], {}),
    "lrn": ("lrn", [(2, 7, 3, 4)], {"size": 3, "alpha": 0.1}),
    "dilation2d": (
        "dilation2d",
        [(1, 6, 7, 3), (3, 2, 3)],
        {"data_layout": "NHWC", "padding": (1, 0, 1, 2), "strides": (1, 2), "dilation": (2, 1)},
    ),
    "correlation": (
        "correlation",
        [(2, 2, 6, 5), (2, 2, 6, 5)],
        {"kernel_size": 3, "max_displacement": 2, "stride1": 2, "stride2": 2, "padding": (3, 2, 3, 2)},
    ),
    "deformable": (
        "deformable_conv2d",
        [(2, 4, 4, 5), (2, 16, 3, 4), (6, 2, 2, 2)],
        {"groups": 2, "deformable_groups": 2},
    ),
}


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compute_what_the_reference_computes(name):
    op, shapes, attrs = COMPILED[name]
    arrays = [
        randoms(*s) * (3 if op.startswith("deformable") and i == 1 else 1) for i, s in enumerate(shapes)
    ]
    arrays = [a.astype(np.float32) for a in arrays]
    run(op, arrays, **attrs)
    compiled(op, arrays, **attrs)


@pytest.mark.parametrize("layouts", [("NCHW", "OIHW"), ("NHWC", "HWIO")])
def test_groups_are_a_dimension_of_their_own(layouts):
    data, kernel = layouts
    x, w = randoms(2, 8, 6, 5), randoms(12, 2, 3, 3)
    arrays = [
        x.transpose(["NCHW".index(c) for c in data]),
        w.transpose(["OIHW".index(c) for c in kernel]),
    ]
    arrays = [np.ascontiguousarray(a) for a in arrays]
    module = compiled("conv2d", arrays, groups=4, data_layout=data, kernel_layout=kernel)
    (op,) = (o for f in module.funcs for o in f.body.ops if o.name == "tensor.contract")
    roles = contract_roles(op)
    assert roles.batch == ("k_hi",)
    assert roles.columns == ("k_lo",)
    assert roles.channels == ("c",)
    assert len(roles.windows) == 2


@pytest.mark.parametrize(("taps", "before"), [(2, 0), (3, 1), (4, 1), (5, 2)])
def test_phases_of_transposed_convolutions_multiply_no_zeros(taps, before):
    """Each of the stride's phases has taps of its own: ceil(taps / stride) products per channel and axis."""
    arrays = [randoms(1, 4, 9, 9), randoms(4, 16, taps, taps)]
    attrs = {"strides": (2, 2), "padding": (before,) * 4, "output_padding": (taps % 2, taps % 2)}
    module = lower(module_of("conv2d_transpose", arrays, **attrs), resolve_target("opencl")).tensor
    found = [(f, o) for f in module.funcs for o in f.body.ops if o.name == "tensor.contract"]
    ((kernel, op),) = found
    assert (
        list(dims(op, "red").values())[1:] == [-(-taps // 2)] * 2 if taps > 2 else dims(op, "red")["c"] == 4
    )
    assert contract_roles(op).columns[-1] == "k"
    assert parameters(kernel).block["k"] <= 16


@pytest.mark.parametrize("dtype", [np.float16, np.dtype("bfloat16")], ids=str)
def test_short_floats_are_normalised_in_float32(dtype):
    x, one = randoms(2, 6, 5, 4, dtype=np.float32).astype(dtype), np.ones(6, dtype)
    for name, arrays, attrs in (
        ("batch_norm", [x, one, one, one, one], {}),
        ("layer_norm", [x, one, one], {"axis": 1}),
        ("group_norm", [x, one, one], {"num_groups": 2}),
        ("instance_norm", [x, one, one], {}),
        ("l2_normalize", [x], {"eps": 1e-6, "axis": (1,)}),
        ("softmax", [x], {}),
        ("log_softmax", [x], {"axis": 1}),
        ("lrn", [x], {}),
    ):
        run(name, arrays, **attrs)
        module = module_of(name, arrays, **attrs)
        lowered = run_pipeline(module, Pipeline.parse("graph-to-tensor"), PassContext())
        arithmetic = {"scalar.add", "scalar.sub", "scalar.mul", "scalar.div", "scalar.fma", "scalar.sqrt"}
        found = [o for op in lowered.main.body.ops if op.body is not None for o in op.body.ops]
        assert {o.result.type.dtype for o in found if o.name in arithmetic} == {"f32"}, name


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("conv3d", [(1, 3, 5, 5, 5), (4, 3, 3, 3, 3)], {"strides": (1, 1)}, "three positive entries"),
        ("conv1d", [(1, 3, 5), (4, 3, 3)], {"data_layout": "NCHW"}, "'data_layout' among NCW, NWC"),
        ("conv3d_transpose", [(1, 3, 5, 5, 5), (4, 3, 3, 3, 3)], {}, "a kernel of 3 input channels"),
        ("avg_pool3d", [(1, 3, 5, 5)], {"pool_size": (2, 2, 2)}, "rank 5"),
        ("deformable_conv2d", [(1, 4, 5, 5), (1, 8, 3, 3), (2, 4, 3, 3)], {}, "offsets of shape"),
        ("correlation", [(1, 4, 5, 5), (1, 4, 5, 5)], {"kernel_size": 2}, "odd kernel_size"),
        (
            "correlation",
            [(1, 4, 5, 5), (1, 4, 5, 5)],
            {"max_displacement": 3},
            "larger than twice the border",
        ),
        ("dilation2d", [(1, 4, 5, 5), (3, 3, 3)], {}, "a kernel of 4 channels"),
    ],
)
def test_misfits_say_what_was_expected(name, shapes, attrs, message):
    d = op_def(f"graph.{name}")
    with pytest.raises(InputError, match=message):
        d.infer([TensorType("f32", s) for s in shapes], dict(d.complete(attrs)))
