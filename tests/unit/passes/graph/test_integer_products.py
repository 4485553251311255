"""Products of dequantised factors become integer products that are as near to the real number as can be."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from attention_training import kernels_of

import tilewright as tw
from tilewright.frontends.importing.emitter import Emitter
from tilewright.frontends.importing.quantisation import centred, dequantised, quantised
from tilewright.ir import Block, Constants, Func, Level, Module, TensorType, Value
from tilewright.passes import PassContext, Pipeline, run_pipeline

RNG = np.random.default_rng(5)
FLOAT32 = float(np.finfo(np.float32).eps)


def quantised_product(
    name: str,
    x: tuple[str, tuple[int, ...]],
    zero: int,
    weights: np.ndarray,
    *,
    scale: np.ndarray | float = 0.25,
    weight_zero: np.ndarray | int | None = None,
    axis: int = 0,
    real: str = "f32",
    **attrs: object,
) -> Module:
    """scale of x: 0.37. scale: of the weights, one number or one per index of `axis`, as is `weight_zero`."""
    emit = Emitter(())
    param = Value(TensorType(*x), "x")
    numbers = np.float16 if real == "f16" else np.float32
    data = dequantised(
        emit, param, emit.constant(numbers(0.37)), emit.constant(np.array(zero, np.int32)), 0, real
    )
    zeros = None if weight_zero is None else emit.constant(np.asarray(weight_zero, np.int32))
    factor = dequantised(
        emit, emit.constant(weights, "w"), emit.constant(np.asarray(scale, numbers)), zeros, axis, real
    )
    out = emit.value(name, data, factor, **attrs)
    emit.builder.emit("graph.return", [out], types=())
    main = Func(Level.GRAPH, "main", Block((param,), tuple(emit.builder.ops)), (out.type,))
    return Module("quantised", (main,)).with_constants(Constants(emit.constants))


def rewritten(module: Module, target: str = "cuda:sm_90a") -> Module:
    passes = Pipeline.parse("infer-shapes, integer-products, fold-constants, dce")
    return run_pipeline(module, passes, PassContext(target=target))


def factors(module: Module) -> set[str]:
    return {
        v.tensor.dtype
        for op in module.main.body.ops
        if op.name in ("graph.dense", "graph.matmul", "graph.conv2d")
        for v in (*op.operands, *op.results)
    }


def bytes_of(dtype: str, *shape: int, least: int | None = None, most: int | None = None) -> np.ndarray:
    info = np.iinfo(np.dtype(dtype))
    low, high = info.min if least is None else least, info.max if most is None else most
    return RNG.integers(low, high + 1, shape).astype(dtype)


CONV = {
    "strides": (1, 1),
    "padding": (1, 0, 2, 1),
    "dilation": (1, 1),
    "data_layout": "NCHW",
    "kernel_layout": "OIHW",
}
PER_OUTPUT = RNG.uniform(0.001, 1.0, 6).astype(np.float32)
#: name -> a product whose integers tensor cores multiply
TAKEN = {
    "dense": lambda: quantised_product("dense", ("i8", (3, 20)), 0, bytes_of("int8", 6, 20)),
    "unsigned data, a scale per output": lambda: quantised_product(
        "dense", ("u8", (3, 20)), 117, bytes_of("int8", 6, 20), scale=PER_OUTPUT
    ),
    "the last zero point": lambda: quantised_product("dense", ("u8", (3, 20)), 255, bytes_of("int8", 6, 20)),
    "unsigned weights": lambda: quantised_product(
        "matmul", ("i8", (2, 3, 20)), -128, bytes_of("uint8", 20, 6), weight_zero=128, axis=1,
        scale=PER_OUTPUT,
    ),
    "a zero point per output": lambda: quantised_product(
        "matmul", ("u8", (3, 20)), 3, bytes_of("int8", 6, 20, least=-99, most=99),
        weight_zero=np.array([-20, 0, 3, 27, -28, 1]), transpose_b=True,
    ),
    "weights in a batch": lambda: quantised_product(
        "matmul", ("u8", (2, 3, 20)), 7, bytes_of("int8", 2, 20, 6), axis=2, scale=PER_OUTPUT
    ),
    "convolution": lambda: quantised_product(
        "conv2d", ("u8", (2, 5, 7, 8)), 9, bytes_of("int8", 6, 5, 3, 2), scale=PER_OUTPUT, **CONV
    ),
    "convolution, channels last": lambda: quantised_product(
        "conv2d", ("i8", (2, 7, 8, 5)), 3, bytes_of("int8", 3, 2, 5, 6), scale=PER_OUTPUT, axis=3,
        **{**CONV, "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
}  # fmt: skip
LEFT = {
    "a scale per input": lambda: quantised_product(
        "matmul", ("i8", (3, 6)), 0, bytes_of("int8", 6, 20), scale=PER_OUTPUT
    ),
    "groups": lambda: quantised_product(
        "conv2d", ("i8", (2, 6, 7, 8)), 0, bytes_of("int8", 6, 1, 3, 2), groups=6, **CONV
    ),
    "weights beyond a byte": lambda: quantised_product(
        "dense", ("i8", (3, 2)), 0, np.array([[255, 0]], np.uint8), weight_zero=100
    ),
    "sums beyond 32 bits": lambda: quantised_product(
        "dense", ("i8", (1, 65800)), 0, bytes_of("int8", 1, 65800)
    ),
    "numbers of 16 bits": lambda: quantised_product(
        "dense", ("i8", (3, 20)), 0, bytes_of("int8", 6, 20), real="f16"
    ),
    "integers of 32 bits": lambda: quantised_product("dense", ("i32", (3, 20)), 0, bytes_of("int8", 6, 20)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_sums_are_exact_and_scaled_once(name):
    """The result is within three roundings of the real number, however much its terms cancel."""
    module = TAKEN[name]()
    out = rewritten(module)
    (t,) = (p.tensor for p in module.main.params)
    assert factors(out) == {t.dtype, "i8", "i32"}
    dtype = {"i8": "int8", "u8": "uint8"}[t.dtype]
    for least, most in ((None, None), (None, np.iinfo(dtype).min), (np.iinfo(dtype).max, None)):
        x = bytes_of(dtype, *t.shape, least=least, most=most)
        (got,), (wanted,) = tw.interpret(out, x), tw.interpret(module, x, precision="fp64")
        # float64 rounds the scales' products of zero to zero, too
        assert np.all(np.abs(got - wanted) <= 2 * FLOAT32 * np.abs(wanted) + 1e-13 * prod(t.shape))


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_the_same_number_stays(name):
    module = LEFT[name]()
    assert "i8" not in factors(rewritten(module))


def test_data_may_be_moved_before_it_is_multiplied():
    emit = Emitter(())
    param = Value(TensorType("u8", (2, 4, 5)), "x")
    data = dequantised(emit, param, emit.constant(np.float32(0.5)), emit.constant(np.int32(4)), 0, "f32")
    turned = emit.value("transpose", data, axes=(0, 2, 1))
    flat = emit.value("reshape", turned, newshape=(2, 20))
    w = dequantised(emit, emit.constant(bytes_of("int8", 6, 20)), emit.constant(PER_OUTPUT), None, 0, "f32")
    out = emit.value("dense", flat, w)
    emit.builder.emit("graph.return", [out], types=())
    main = Func(Level.GRAPH, "main", Block((param,), tuple(emit.builder.ops)), (out.type,))
    module = Module("moved", (main,)).with_constants(Constants(emit.constants))
    changed = rewritten(module)
    assert factors(changed) == {"u8", "i8", "i32"}
    x = bytes_of("uint8", 2, 4, 5)
    np.testing.assert_allclose(tw.interpret(changed, x)[0], tw.interpret(module, x)[0], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("weights", "weight_zero", "taken"),
    [
        (bytes_of("int8", 6, 5, 3, 2), None, True),
        (bytes_of("uint8", 6, 5, 3, 2, least=10, most=250), 125, True),
        (bytes_of("uint8", 6, 5, 3, 2, least=0, most=255), 125, False),
    ],
)
def test_factors_that_are_centred_in_32_bits_are_multiplied_as_bytes(weights, weight_zero, taken):
    """As Relay's qnn.conv2d comes in: both factors less their zero points, which padding is."""
    weights.reshape(-1)[:2] = (weights.min(), 255 if weight_zero and not taken else weights.max())
    emit = Emitter(())
    param = Value(TensorType("u8", (2, 5, 7, 8)), "x")
    zero = None if weight_zero is None else emit.constant(np.array(weight_zero, np.int32))
    data = centred(emit, param, emit.constant(np.array(9, np.int32)))
    out = emit.value("conv2d", data, centred(emit, emit.constant(weights), zero, 0), **CONV, out_dtype="i32")
    emit.builder.emit("graph.return", [out], types=())
    main = Func(Level.GRAPH, "main", Block((param,), tuple(emit.builder.ops)), (out.type,))
    module = Module("centred", (main,)).with_constants(Constants(emit.constants))
    changed = rewritten(module)
    assert (factors(changed) == {"u8", "i8", "i32"}) == taken
    x = bytes_of("uint8", 2, 5, 7, 8)
    assert np.array_equal(tw.interpret(changed, x)[0], tw.interpret(module, x)[0])


@pytest.mark.parametrize(("images", "stored"), [(8, False), (1, True)])
def test_images_with_zero_points_are_stored_padded_where_that_takes_less_time(images, stored):
    """A table of sums per pixel is read by all images; for one image it is longer than the image is."""
    weights, attrs = bytes_of("int8", 64, 64, 3, 3), {**CONV, "padding": (1, 1, 1, 1)}
    out = rewritten(quantised_product("conv2d", ("u8", (images, 64, 224, 224)), 9, weights, **attrs))
    names = [op.name for op in out.main.body.ops]
    assert ("graph.pad" in names) == stored


def test_devices_that_multiply_no_bytes_keep_their_floats():
    module = TAKEN["dense"]()
    assert factors(rewritten(module, "opencl")) == {"f32"}
    assert factors(rewritten(module, "cuda:sm_75")) == {"f32"}
    assert factors(rewritten(module, "cuda:sm_80")) == {"i8", "i32"}


def residual_block() -> Module:
    """Two convolutions of quantised images, what the first one reads added to the second one's sums."""
    emit = Emitter(())
    param = Value(TensorType("f32", (2, 16, 6, 6)), "x")
    scale = emit.constant(np.float32(0.05))

    def requantised(x: Value, zero: int) -> Value:
        z = emit.constant(np.array(zero, np.uint8))
        return dequantised(emit, quantised(emit, x, scale, z, 0, "u8"), scale, z, 0, "f32")

    first = x = requantised(param, 128)
    for i in range(2):
        scales = emit.constant(RNG.uniform(0.0005, 0.001, 16).astype(np.float32))
        w = dequantised(emit, emit.constant(bytes_of("int8", 16, 16, 3, 3)), scales, None, 0, "f32")
        x = emit.value("conv2d", x, w, **{**CONV, "padding": (1, 1, 1, 1)})
        x = requantised(emit.value("relu", x), 0) if i == 0 else emit.value("add", x, first)
    emit.builder.emit("graph.return", [x], types=())
    main = Func(Level.GRAPH, "main", Block((param,), tuple(emit.builder.ops)), (x.type,))
    return Module("block", (main,)).with_constants(Constants(emit.constants))


def test_kernels_of_a_quantised_block_keep_bytes_between_them_and_compute_the_same():
    module = residual_block()
    x = RNG.normal(0, 2, (2, 16, 6, 6)).astype(np.float32)
    kernels = kernels_of(module)
    calls = [op for op in kernels.main.body.ops if op.name == "tensor.call"]
    between = [r.tensor.dtype for op in calls for r in op.results]
    assert set(between[:-1]) == {"u8"}
    assert between[-1] == "f32"
    (got,), (wanted,) = tw.interpret(kernels, x), tw.interpret(module, x, precision="fp64")
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)
