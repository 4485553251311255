"""Gradients of ops that move, pick and put elements, where the fuzzer's draws do not reach."""

import numpy as np
import pytest

import tilewright as tw
from tests.samples.gradients import check_gradient, scalar_module
from tests.samples.graph_op_agreement import module_of

RNG = np.random.default_rng(3)


def floats(*shape):
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


def agrees(name, *arrays, wrt=("x0",), **attrs):
    check_gradient(module_of(name, arrays, **attrs), arrays, wrt)


def gradients(name, *arrays, wrt=("x0",), **attrs):
    """Gradients of the sum of the results, in the dtype of the operands."""
    module, weights = scalar_module(module_of(name, arrays, **attrs))
    ones = [np.ones_like(w, np.float32) for w in weights]
    return tw.interpret(tw.grad(module, wrt, value=False), *arrays, *ones)


def i32(*values):
    return np.asarray(values, np.int32)


def test_take_of_batches():
    agrees("take", floats(2, 3, 5, 2), i32([0, 7, -1], [4, 4, 2]), axis=2, batch_dims=1, mode="clip")
    agrees("take", floats(2, 3, 4), i32([[0, 9], [1, 1], [2, -1]], [[0, 0], [3, 3], [2, 2]]), axis=2,
           batch_dims=2, mode="wrap")  # fmt: skip


def test_take_at_unsigned_indices_of_few_bits():
    agrees("take", floats(300), np.asarray([0, 255, 255, 7], np.uint8), axis=0, mode="clip")
    agrees("take", floats(9), np.asarray([0, 255, 3], np.uint8), mode="wrap")


def test_an_embedding_is_one_scatter_of_rows():
    module, _ = scalar_module(module_of("take", [floats(7, 4), i32(1, 1, 3)], axis=0))
    names = [op.name for op in tw.grad(module, "x0", value=False).main.body.ops]
    assert names.count("graph.scatter_nd") == 1
    assert "graph.transpose" not in names


def test_gather_nd_of_batches_and_of_no_coordinate():
    agrees("gather_nd", floats(2, 3, 4), i32([[0, -1], [2, 2]]), batch_dims=1)
    agrees("gather_nd", floats(2, 3), np.zeros((0, 2, 4), np.int32), batch_dims=1)
    agrees("gather_nd", floats(3), np.zeros((0, 4), np.int32))


@pytest.mark.parametrize("mode", ["update", "add", "mul", "min", "max", "mean"])
def test_scatter_with_duplicates_and_dropped_updates(mode):
    x, updates = floats(4, 3), floats(4, 2)
    indices = i32([0, 2], [-1, 9], [2, 2], [-7, 1])
    agrees("scatter_elements", x, indices, updates, axis=1, reduction=mode, wrt=("x0", "x2"))
    columns = np.asarray([[0, 1, 1, -4, 8, 1]])
    if mode != "mean":
        agrees("scatter_nd", x, columns, floats(6, 3), mode=mode, wrt=("x0", "x2"))
        points = i32([0, 1, 1, 9, 0], [0, 2, 2, 0, -3])
        agrees("scatter_nd", x, points, floats(5), mode=mode, wrt=("x0", "x2"))


def test_products_of_scattered_zeros():
    """An only zero receives the product of the others; two zeros receive nothing."""
    x = np.asarray([0, 2, 0, 3], np.float32)
    updates = np.asarray([0, 5, 0, 7], np.float32)
    agrees("scatter_elements", x, i32(0, 0, 1, 2), updates, reduction="mul", wrt=("x0", "x2"))
    dx, du = gradients("scatter_elements", x, i32(0, 0, 1, 2), updates, reduction="mul", wrt=("x0", "x2"))
    np.testing.assert_array_equal(dx, [0, 0, 7, 1])
    np.testing.assert_array_equal(du, [0, 0, 2, 0])


def test_extremes_that_tie_share_evenly():
    dx, du = gradients("scatter_nd", np.float32([1, 4]), i32([0, 0, 1]), np.float32([1, 1, 3]), mode="max",
                       wrt=("x0", "x2"))  # fmt: skip
    np.testing.assert_allclose(dx, [1 / 3, 1])
    np.testing.assert_allclose(du, [1 / 3, 1 / 3, 0])


def test_nothing_to_scatter_into():
    x, updates = np.zeros((0, 3), np.float32), floats(2, 3)
    (du,) = gradients("scatter_nd", x, i32([0, 1]), updates, mode="add", wrt=("x2",))
    np.testing.assert_array_equal(du, np.zeros((2, 3)))


def test_sparse_to_dense_drops_negative_coordinates():
    rows = i32([0, 1], [0, 1], [-1, 0], [2, 5])
    agrees("sparse_to_dense", rows, floats(4), floats(), output_shape=(3, 4), wrt=("x1", "x2"))
    agrees("sparse_to_dense", rows, floats(), floats(), output_shape=(3, 4), wrt=("x1", "x2"))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("zeros", [(), (2,), (0,), (4,), (1, 3), (0, 1, 2, 3, 4)])
def test_running_products_of_zeros(zeros, exclusive):
    x = floats(2, 5)
    x[1, list(zeros)] = 0
    agrees("cumprod", x, axis=1, exclusive=exclusive)


@pytest.mark.parametrize("name", ["cumprod", "prod"])
@pytest.mark.parametrize("x", [[0, 2, 3], [0, 0, 3], [2, 0, 4, 0, 3]])
def test_second_order_at_zeros(name, x):
    """Two factors have a mixed derivative where one of them is zero."""
    attrs = {"axis": 0} if name == "cumprod" else {"axis": (0,), "keepdims": False}
    x = np.float32(x)
    scalar, weights = scalar_module(module_of(name, [x], **attrs))
    check_gradient(tw.grad(scalar, "x0", value=False), [x, *weights], ["x0"])


def test_padding_with_an_operand():
    pads = {"pad_before": (1, 0), "pad_after": (2, 3)}
    agrees("pad", floats(2, 3), floats(), wrt=("x0", "x1"), **pads)
    agrees("pad", floats(2, 3), floats(1), wrt=("x1",), **pads)


def test_a_triangle_by_an_operand():
    agrees("trilu", floats(2, 4, 3), i32(1), upper=False)


def test_one_part_of_several_is_padded():
    text = """module @m {
      graph.func @main(%x: f32[6, 2]) -> f32[] {
        %a, %b, %c = graph.split(%x, indices = [1, 4], axis = 0) : f32[1, 2], f32[3, 2], f32[2, 2]
        %s = graph.sum(%b, axis = [0, 1], keepdims = false) : f32[]
        graph.return(%s)
      }
    }"""
    module = tw.parse(text)
    (dx,) = tw.interpret(tw.grad(module, "x", value=False), floats(6, 2))
    np.testing.assert_array_equal(dx[:, 0], [0, 1, 1, 1, 0, 0])
    assert "graph.concatenate" not in {op.name for op in tw.grad(module, "x").main.body.ops}


@pytest.mark.parametrize("name", ["roi_align", "roi_pool"])
def test_regions_are_refused(name):
    arrays = floats(1, 2, 6, 6), np.asarray([[0, 1, 1, 4, 4]], np.float32)
    with pytest.raises(tw.UnsupportedError, match=f"graph.{name} is not differentiable here: .*its regions"):
        gradients(name, *arrays, pooled_size=(2, 2), spatial_scale=1.0, wrt=("x1",))


def test_boxes_are_refused():
    arrays = floats(1, 2, 6, 6), np.asarray([[0.1, 0.1, 0.8, 0.9]], np.float32), i32(0)
    with pytest.raises(
        tw.UnsupportedError, match=r"graph.crop_and_resize is not differentiable here: .*boxes"
    ):
        gradients("crop_and_resize", *arrays, crop_size=(2, 2), wrt=("x1",))
