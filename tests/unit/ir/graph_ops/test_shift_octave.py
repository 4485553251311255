"""Spatial shift and octave convolution: meaning, lowering, and the kernels they become."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Builder, Constants, Func, Level, Module, TensorType, Value
from tilewright.passes import PassContext, Pipeline, run_pipeline


def f32(*shape):
    return TensorType("f32", shape)


def module_of(name, types, **attrs):
    params = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
    b = Builder("test:op")
    results = b.emit(f"graph.{name}", params, attrs)
    b.emit("graph.return", results)
    return Module("m", (Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results)),))


def normal(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def lowered(module):
    pipeline = Pipeline.parse("infer-shapes, graph-to-tensor")
    return run_pipeline(module, pipeline, PassContext(verify_each=True))


def shifted(x, offsets):
    """Each channel moved, by loops."""
    out = np.zeros_like(x)
    _, _, height, width = x.shape
    for c, (dy, dx) in enumerate(offsets):
        for i in range(height):
            for j in range(width):
                if 0 <= i + dy < height and 0 <= j + dx < width:
                    out[:, c, i, j] = x[:, c, i + dy, j + dx]
    return out


@pytest.mark.parametrize(("layout", "integer"), [("NCHW", "i32"), ("NHWC", "i64")])
def test_shift(layout, integer):
    shape = (2, 6, 5, 7) if layout == "NCHW" else (2, 5, 7, 6)
    module = module_of("shift", [f32(*shape), TensorType(integer, (6, 2))], data_layout=layout)
    (x,) = normal([shape])
    offsets = np.array([[0, 0], [1, 0], [-1, 2], [0, -3], [9, 0], [-4, -6]], integer.replace("i", "int"))
    image = x if layout == "NCHW" else x.transpose(0, 3, 1, 2)
    wanted = shifted(image, offsets)
    wanted = wanted if layout == "NCHW" else wanted.transpose(0, 2, 3, 1)
    runs = [tw.interpret(module, x, offsets), tw.interpret(lowered(module), x, offsets)]
    if layout == "NHWC":
        with tw.compile(module, target="opencl") as exe:
            runs.append(exe(x, offsets))
    for got in runs:
        np.testing.assert_array_equal(got[0], wanted)


@pytest.mark.parametrize(
    ("layout", "target"), [("NCHW", "opencl"), ("NCHW", "cuda:sm_90a"), ("NHWC", "cuda:sm_90a")]
)
def test_shift_and_the_convolution_behind_it_are_one_kernel(layout, target):
    shape = (1, 8, 6, 7) if layout == "NCHW" else (1, 6, 7, 8)
    x = Value(f32(*shape), "x")
    b = Builder("test:sc2")
    (offsets,) = b.emit("graph.constant", (), {"name": "o"}, types=[TensorType("i32", (8, 2))])
    (weight,) = b.emit("graph.constant", (), {"name": "w"}, types=[f32(5, 8, 1, 1)])
    (moved,) = b.emit("graph.shift", (x, offsets), {"data_layout": layout})
    mixed = b.emit("graph.conv2d", (moved, weight), {"data_layout": layout})
    b.emit("graph.return", mixed)
    main = Func(Level.GRAPH, "main", b.block((x,)), tuple(v.type for v in mixed))
    moves = np.random.default_rng(1).integers(-2, 3, (8, 2)).astype(np.int32)
    (w,) = normal([(5, 8, 1, 1)], 2)
    module = Module("m", (main,), (), Constants({"o": moves, "w": w}))
    assert len(lower(module, resolve_target(target)).sources) == 1
    if target == "opencl":
        (image,) = normal([shape], 3)
        with tw.compile(module, target=target) as exe:
            (got,) = exe(image)
        np.testing.assert_allclose(got, tw.interpret(module, image)[0], rtol=1e-5, atol=1e-5)


def test_shift_refuses_other_offsets():
    with pytest.raises(tw.InputError, match=r"\(6, 2\)"):
        module_of("shift", [f32(1, 6, 4, 4), TensorType("i32", (2, 6))])
    with pytest.raises(tw.InputError, match="integer"):
        module_of("shift", [f32(1, 6, 4, 4), f32(6, 2)])


OCTAVE = {
    "NCHW": [(1, 4, 8, 10), (1, 3, 4, 5), (6, 4, 3, 3), (2, 4, 3, 3), (6, 3, 3, 3), (2, 3, 3, 3)],
    "NHWC": [(1, 8, 10, 4), (1, 4, 5, 3), (3, 3, 4, 6), (3, 3, 4, 2), (3, 3, 3, 6), (3, 3, 3, 2)],
}


def octave(layout):
    kernel = {"NCHW": "OIHW", "NHWC": "HWIO"}[layout]
    types = [f32(*s) for s in OCTAVE[layout]]
    attrs = {"padding": (1, 1, 1, 1), "data_layout": layout, "kernel_layout": kernel}
    return module_of("octave_conv2d", types, **attrs)


def convolved(x, w):
    """3 x 3 convolution of NCHW data with an OIHW kernel, padded by one, by sums over taps."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    _, _, height, width = x.shape
    return sum(
        np.einsum(
            "nchw,oc->nohw", padded[:, :, i : i + height, j : j + width], w[:, :, i, j].astype(np.float64)
        )
        for i in range(3)
        for j in range(3)
    )


def test_octave_is_what_the_paper_says():
    high, low, hh, hl, lh, ll = x = normal(OCTAVE["NCHW"])
    mean = high.astype(np.float64).reshape(1, 4, 4, 2, 5, 2).mean(axis=(3, 5))
    y_high = convolved(high, hh) + convolved(low, lh).repeat(2, axis=2).repeat(2, axis=3)
    y_low = convolved(low, ll) + convolved(mean, hl)
    for got, wanted in zip(tw.interpret(octave("NCHW"), *x), (y_high, y_low), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", OCTAVE)
def test_octave_lowered(layout):
    module, x = octave(layout), normal(OCTAVE[layout])
    wanted = tw.interpret(module, *x)
    parts = run_pipeline(
        module, Pipeline.parse("infer-shapes, decompose-octave"), PassContext(verify_each=True)
    )
    assert sum(op.name == "graph.conv2d" for op in parts.main.body.ops) == 4
    for run in (tw.interpret(lowered(module), *x), tw.interpret(parts, *x)):
        for got, want in zip(run, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_octave_compiled():
    module, x = octave("NCHW"), normal(OCTAVE["NCHW"])
    with tw.compile(module, target="opencl", conv_algorithm="direct") as exe:
        run = exe(*x)
        assert len(exe.report()["kernels"]) == 5  # the mean, and four convolutions with additions behind two
    for got, want in zip(run, tw.interpret(module, *x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_octave_refuses_maps_of_other_extents():
    types = [f32(*s) for s in OCTAVE["NCHW"]]
    types[1] = f32(1, 3, 4, 4)
    with pytest.raises(tw.InputError, match="half the extents"):
        module_of("octave_conv2d", types, padding=(1, 1, 1, 1))
