"""Every op, its operands cut along every dimension in every way, equals the whole op on whole operands."""

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.costmodel.partition.naive import apportioned
from tilewright.ir.builder import Builder
from tilewright.ir.division import elementwise, undivided
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Func, Level, Module, Value
from tilewright.ir.opdef import op_defs
from tilewright.ir.types import TensorType, numpy_dtype
from tilewright.passes.graph.distribute.rows.placement import sliced
from tilewright.passes.graph.distribute.sharding.program import ShardedProgram, outputs_gathered, with_main
from tilewright.passes.graph.distribute.sharding.shards import Shard

X = (4, 6, 2, 8)
#: op, operands (shapes of f32, or type texts) and attributes
CASES = {
    "add": ("add", [X, (6, 1, 8)], {}),
    "add-scalar": ("add", [X, ()], {}),
    "where": ("where", ["bool[4, 1, 2, 8]", X, (8,)], {}),
    "relu": ("relu", [X], {}),
    "subtract": ("subtract", [X, X], {}),
    "multiply": ("multiply", [X, (8,)], {}),
    "divide": ("divide", [X, ()], {}),
    "negative": ("negative", [X], {}),
    "cast": ("cast", [X], {"dtype": "i32"}),
    "dropout": ("dropout", [X], {}),
    "bias_add": ("bias_add", [X, (6,)], {"axis": 1}),
    "prelu": ("prelu", [X, (8,)], {"axis": -1}),
    "batch_norm": ("batch_norm", [X, (6,), (6,), (6,), (6,)], {"axis": 1}),
    "batch_norm_training": ("batch_norm_training", [X, (6,), (6,)], {"axis": 1}),
    "stop_gradient": ("stop_gradient", [X], {}),
    "random_bits": (
        "random_bits",
        ["u32[2]", "u32[]"],
        {"shape": (4, 6, 3), "stream": 7},
    ),
    "random_mask": (
        "random_mask",
        ["u32[2]", "u32[]"],
        {"shape": (4, 6, 3), "stream": 7, "kept": 3, "bits": 2},
    ),
    "layer_norm": ("layer_norm", [X, (8,), (8,)], {"axis": -1}),
    "group_norm": ("group_norm", [X, (6,), (6,)], {"num_groups": 3}),
    "instance_norm": ("instance_norm", [X, (6,), (6,)], {}),
    "l2_normalize": ("l2_normalize", [X], {"eps": 1e-3, "axis": (1,)}),
    "l2_normalize-all": ("l2_normalize", [X], {"eps": 1e-3}),
    "lrn": ("lrn", [X], {"size": 3}),
    "softmax": ("softmax", [X], {"axis": 1}),
    "log_softmax": ("log_softmax", [X], {}),
    "attention": (
        "attention",
        [(4, 6, 2, 8), (4, 1, 3, 8), (4, 1, 3, 5), (2, 3), "bool[6, 2, 3]"],
        {"others": ("bias", "kept")},
    ),
    "attention_backward": (
        "attention_backward",
        [(4, 6, 2, 8), (4, 1, 3, 8), (4, 1, 3, 5), (4, 6, 2, 5), (4, 6, 2), (4, 6, 2, 5), (4, 6, 2)],
        {"others": ("lse_cotangent",)},
    ),
    "sum": ("sum", [X], {"axis": (1, 3)}),
    "sum-keep": ("sum", [X], {"axis": (0,), "keepdims": True}),
    "max": ("max", [X], {"axis": (0, 1, 3)}),
    "mean": ("mean", [X], {"axis": (-1,)}),
    "argmax": ("argmax", [X], {"axis": (1,)}),
    "variance": ("variance", [X, (4, 1, 2, 1)], {"axis": (1, 3)}),
    "max_pool2d": ("max_pool2d", [X], {"pool_size": (2, 2)}),
    "max_pool2d_position": ("max_pool2d_position", [X], {"pool_size": (2, 2)}),
    "max_pool2d_grad": (
        "max_pool2d_grad",
        [(4, 6, 3, 4), "u8[4, 6, 3, 4]"],
        {"pool_size": (2, 2), "strides": (2, 2), "image": (6, 8)},
    ),
    "avg_pool2d_grad": (
        "avg_pool2d_grad",
        [(4, 6, 3, 4)],
        {"pool_size": (2, 2), "strides": (2, 2), "image": (6, 8)},
    ),
    "conv2d_weight_grad": (
        "conv2d_weight_grad",
        [(4, 6, 5, 5), (4, 3, 5, 5)],
        {"kernel_size": (3, 3), "padding": (1, 1, 1, 1)},
    ),
    "avg_pool2d-nhwc": ("avg_pool2d", [X], {"pool_size": (2, 2), "layout": "NHWC"}),
    "global_avg_pool2d": ("global_avg_pool2d", [X], {}),
    "adaptive_avg_pool2d": ("adaptive_avg_pool2d", [X], {"output_size": (1, 3)}),
    "resize2d": ("resize2d", [X], {"size": (4, 5)}),
    "depth_to_space": ("depth_to_space", [(2, 8, 2, 3)], {"block_size": 2}),
    "space_to_depth": ("space_to_depth", [X], {"block_size": 2}),
    "grid_sample": ("grid_sample", [X, (4, 2, 3, 3)], {}),
    "correlation": ("correlation", [X, X], {"max_displacement": 1, "padding": (1, 1, 1, 1)}),
    "conv2d": ("conv2d", [(4, 6, 5, 5), (4, 6, 3, 3)], {"padding": (1, 1, 1, 1)}),
    "conv2d-1x1": ("conv2d", [(2, 16, 1, 1), (4, 16, 1, 1)], {}),
    "conv2d-depthwise": ("conv2d", [(3, 6, 5, 5), (6, 1, 3, 3)], {"groups": 6}),
    "conv2d-groups": ("conv2d", [(3, 6, 5, 5), (4, 3, 3, 3)], {"groups": 2}),
    "conv2d-multiplier": ("conv2d", [(3, 4, 5, 5), (4, 2, 3, 3)], {"groups": 4}),
    "conv2d-nhwc": (
        "conv2d",
        [(4, 5, 5, 6), (3, 3, 6, 4)],
        {"data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    "conv1d": ("conv1d", [(4, 6, 5), (6, 6, 3)], {}),
    "conv2d_transpose": ("conv2d_transpose", [(4, 6, 3, 3), (6, 4, 3, 3)], {"strides": (2, 2)}),
    "dense": ("dense", [(4, 3, 6), (8, 6)], {}),
    "dense-deep": ("dense", [(2, 64), (3, 64)], {}),
    "matmul": ("matmul", [(4, 2, 3, 6), (2, 6, 5)], {}),
    "matmul-turned": ("matmul", [(4, 6, 3), (4, 5, 6)], {"transpose_a": True, "transpose_b": True}),
    "batch_matmul": ("batch_matmul", [(4, 3, 6), (1, 6, 5)], {}),
    "batch_matmul-deep": ("batch_matmul", [(4, 2, 24), (4, 24, 2)], {}),
    "einsum": ("einsum", [(4, 6, 3), (6, 5)], {"equation": "abc,bd->acd"}),
    "einsum-diagonal": ("einsum", [(4, 4, 3)], {"equation": "aab->ab"}),
    "transpose": ("transpose", [X], {"axes": (2, 0, 3, 1)}),
    "broadcast_to": ("broadcast_to", [(6, 1, 8)], {"shape": (4, 6, 2, 8)}),
    "tile": ("tile", [(6, 4)], {"reps": (2, 1, 3)}),
    "repeat": ("repeat", [X], {"repeats": 3, "axis": 1}),
    "reverse": ("reverse", [X], {"axis": 0}),
    "cumsum": ("cumsum", [X], {"axis": 1}),
    "argsort": ("argsort", [X], {"axis": 1}),
    "topk": ("topk", [X], {"k": 2, "axis": 1}),
    "pad": ("pad", [X], {"pad_before": (0, 1, 0, 0), "pad_after": (0, 0, 0, 2)}),
    "strided_slice": (
        "strided_slice",
        [X],
        {"begin": (0, 3, 0, 2), "size": (4, 3, 2, 2), "strides": (1, 1, 1, 2)},
    ),
    "strided_slice-back": ("strided_slice", [(6, 4)], {"begin": (5, 0), "size": (6, 4), "strides": (-1, 1)}),
    "strided_set": ("strided_set", [X, (4, 2, 2, 8)], {"begin": (0, 1, 0, 0), "strides": (1, 2, 1, 1)}),
    "sliding_window": ("sliding_window", [X], {"axis": 2, "window_shape": (1, 3), "strides": (1, 2)}),
    "concatenate": ("concatenate", [(4, 6), (4, 12)], {"axis": 1}),
    "stack": ("stack", [(4, 6), (4, 6)], {"axis": 1}),
    "split": ("split", [X], {"indices": (2, 4), "axis": 1}),
    "split-unequal": ("split", [(3, 12)], {"indices": (6, 8), "axis": 1}),
    "take-rows": ("take", [(6, 8), "i32[4, 3]"], {"axis": 0}),
    "take-flat": ("take", [(6, 8), "i32[4, 3]"], {}),
    "take-batch": ("take", [(4, 6, 8), "i32[4, 3]"], {"axis": 1, "batch_dims": 1}),
    "gather": ("gather", [(4, 6), "i32[4, 3]"], {"axis": 1}),
    "scatter_elements": ("scatter_elements", [(4, 6), "i32[4, 6]", (4, 6)], {"axis": 1, "reduction": "add"}),
    "adv_index": ("adv_index", [X, "i32[3, 1]", "i32[4]"], {}),
    "one_hot": ("one_hot", ["i32[4, 6]", (), ()], {"depth": 3, "axis": 1}),
    "trilu": ("trilu", [(4, 6, 6)], {}),
    "reverse_sequence": ("reverse_sequence", [(6, 4, 2), "i32[4]"], {"seq_axis": 0, "batch_axis": 1}),
    "sequence_mask": ("sequence_mask", [(6, 4, 2), "i32[4]"], {}),
    "reshape-merge": ("reshape", [X], {"newshape": (24, 16)}),
    "reshape-cut": ("reshape", [(4, 6, 8)], {"newshape": (2, 2, 6, 4, 2)}),
    "reshape-inner": ("reshape", [(6, 4, 8)], {"newshape": (24, 2, 4)}),
    "reshape-mixed": ("reshape", [(4, 6)], {"newshape": (8, 3)}),
    "reshape-ones": ("reshape", [(1, 4, 1, 6)], {"newshape": (4, 1, 1, 3, 2)}),
    "expand_dims": ("expand_dims", [X], {"axis": 1, "num_newaxis": 2}),
    "squeeze": ("squeeze", [(1, 4, 1, 6)], {}),
    "batch_flatten": ("batch_flatten", [X], {}),
}


def typed(operand):
    if isinstance(operand, tuple):
        return TensorType("f32", operand)
    dtype, _, dims = operand.rstrip("]").partition("[")
    return TensorType(dtype, tuple(map(int, dims.split(", "))) if dims else ())


def module_of(name, operands, attrs):
    """The op on copies of the inputs, of which no device has more than its piece."""
    params = tuple(Value(typed(t), f"x{i}") for i, t in enumerate(operands))
    b = Builder()
    copies = [b.value("graph.copy", p) for p in params]
    results = b.emit(f"graph.{name}", copies, attrs, loc="test:op")
    b.emit("graph.return", results)
    return Module("m", (Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results)),))


def arrays_of(module):
    rng = np.random.default_rng(0)
    out = []
    for p in module.main.params:
        t = p.tensor
        if t.dtype == "f32":
            out.append(rng.uniform(0.1, 1, t.shape))
        else:
            out.append(rng.integers(0, 2, t.shape).astype(numpy_dtype(t.dtype)))
    return out


def cuts_of(module):
    """Cuts of one operand, and of all operands that have the same extent at the same place."""
    seen = set()
    for i, p in enumerate(module.main.params):
        for axis, extent in enumerate(p.tensor.shape):
            for outer, speeds in ((1, (2, 0, 1) if axis % 2 == 0 else (2, 1)), (2, (1, 1))):
                if extent % outer:
                    continue
                shard = Shard(axis, outer, apportioned(extent // outer, speeds))
                yield {i: shard}
                others = {
                    j: shard
                    for j, q in enumerate(module.main.params)
                    if q.tensor.shape[axis : axis + 1] == (extent,)
                }
                if len(others) > 1 and (axis, extent, outer) not in seen:
                    seen.add((axis, extent, outer))
                    yield others


def distributed(module, cuts, communicating=True):
    modules = []
    count = len(next(iter(cuts.values())).parts)
    for member in range(count):
        pool = ConstantPool()
        program = ShardedProgram(module, range(count), member, pool, communicating=communicating)
        for i, shard in cuts.items():
            program.cut(module.main.params[i], shard)
        program.run()
        modules.append(with_main(module, outputs_gathered(program), pool))
    return modules


@pytest.mark.parametrize("case", CASES)
def test_pieces_make_the_whole(case):
    module = module_of(*CASES[case])
    arrays = arrays_of(module)
    wanted = tw.interpret(module, *arrays, precision="fp64")
    for cuts in cuts_of(module):
        for got in interpret_ranks(distributed(module, cuts), *arrays, precision="fp64"):
            for g, w in zip(got, wanted, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12, err_msg=str(cuts))


#: a cut of the first operand, and what rank 0 does between cutting and the end
LOCAL = {
    "heads out of a batch": ("reshape", [(2, 6, 3)], {"newshape": (12, 3)}, Shard(0, 1, ((0, 1), (1, 2)))),
    "heads of every sample": ("reshape", [(2, 6, 3)], {"newshape": (12, 3)}, Shard(1, 1, ((0, 4), (4, 6)))),
    "heads back": ("reshape", [(12, 3)], {"newshape": (2, 6, 3)}, Shard(0, 2, ((0, 4), (4, 6)))),
    "gates": ("split", [(2, 12)], {"indices": (3, 6, 9), "axis": 1}, Shard(1, 4, ((0, 1), (1, 3)))),
    "depthwise": (
        "conv2d",
        [(1, 4, 3, 3), (4, 1, 3, 3)],
        {"groups": 4},
        Shard(1, 1, ((0, 1), (1, 4))),
    ),
    "softmax of heads": ("softmax", [(2, 6, 3)], {}, Shard(1, 1, ((0, 4), (4, 6)))),
}


@pytest.mark.parametrize("case", LOCAL)
def test_pieces_stay_apart_until_the_end(case):
    *parts, shard = LOCAL[case]
    module = module_of(*parts)
    ops = distributed(module, {0: shard})[0].main.body.ops
    gathers = [i for i, op in enumerate(ops) if op.name == "graph.all_gather"]
    worked = [i for i, op in enumerate(ops) if op.results and op.loc == "test:op" and i < gathers[0]]
    assert worked, [op.name for op in ops]
    assert len(gathers) == len(module.main.result_types)


def test_inner_extents_are_added_up_where_that_moves_less():
    module = module_of("dense", [(2, 64), (3, 64)], {})
    names = [op.name for op in distributed(module, {0: Shard(1, 1, ((0, 32), (32, 64)))})[0].main.body.ops]
    assert "graph.all_reduce" in names
    assert "graph.all_gather" not in names


@pytest.mark.parametrize("case", CASES)
def test_rows_of_results_are_those_of_the_whole(case):
    module = module_of(*CASES[case])
    op = module.main.body.ops[-2]
    arrays = arrays_of(module)
    whole = tw.interpret(module, *arrays, precision="fp64")
    rank = op.results[0].tensor.rank
    for axis in range(rank) if all(r.tensor.rank == rank for r in op.results) else ():
        extents = {r.tensor.shape[axis] for r in op.results}
        middle = min(extents) // 2
        for start, end in ((0, middle), (middle, min(extents))):
            piece = sliced(op, axis, start, end) if start < end and len(extents) == 1 else None
            if piece is None or start % piece.align or end % piece.align:
                continue
            rows = [cut(a, n) for a, n in zip(arrays, piece.needs, strict=True)]
            given = [module.main.params[i].tensor for i in range(len(rows))]
            types = [TensorType(t.dtype, a.shape) for t, a in zip(given, rows, strict=True)]
            params = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
            b = Builder()
            results = b.emit(op.name, params, dict(op.attrs) | dict(piece.attrs))
            b.emit("graph.return", results)
            func = Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results))
            for g, w in zip(tw.interpret(Module("m", (func,)), *rows, precision="fp64"), whole, strict=True):
                made = g.take(range(*piece.keep), axis) if piece.keep else g
                np.testing.assert_allclose(made, w.take(range(start, end), axis), rtol=1e-12, atol=1e-12)


def cut(array, need):
    return array if need is None else array.take(range(need.start, need.end), need.axis)


def test_mixed_samples_are_an_error_without_communication():
    module = module_of("softmax", [(4, 3)], {"axis": 0})
    with pytest.raises(UnsupportedError, match=r"one by one, got graph\.softmax"):
        distributed(module, {0: Shard(0, 1, ((0, 2), (2, 4)))}, communicating=False)


def test_all_labels_are_tested():
    alike = {"copy", "sort", "cumprod", "prod", "min", "all", "any", "argmin", "global_max_pool"}
    alike |= {"adaptive_max_pool", "roi_align", "roi_pool"}
    names = {
        d.name.removeprefix("graph.")
        for d in op_defs()
        if d.facts and d.facts.division not in (undivided, elementwise) and not d.effects
    }
    plain = {re.sub(r"[123]d", "", n) for n in names}
    assert plain - alike <= {re.sub(r"[123]d", "", CASES[case][0]) for case in CASES}
