"""Attributes that name one of several ways: every value that TVM 0.18 lists is imported, others are refused.

The lists are those of include/tvm/relay/attrs/*.h, and of TVM's operator inventory where a header has none.
"""

import itertools

import numpy as np
import pytest

from tilewright.frontends.relay.load import import_module, read_source
from tilewright.frontends.relay.reading.json_graph import JsonGraph
from tilewright.frontends.relay.reading.json_reader import NodeReader
from tilewright.ir import InputError, interpret

TRANSFORMS = (
    "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("", "round", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
IMAGE, VOLUME, ROWS, REGIONS = (1, 4, 6, 6), (1, 4, 4, 6, 6), (3, 4), (2, 5)
#: a call with its choices in braces, shapes of its operands, and the values of every choice
CALLS = (
    (
        'image.resize2d(%x, size=[9, 12], roi=[0f, 0f, 1f, 1f], method="{}", '
        'coordinate_transformation_mode="{}", rounding_method="{}")',
        {"x": IMAGE},
        (("nearest_neighbor", "linear", "cubic"), TRANSFORMS, ROUNDINGS),
    ),
    (
        'nn.upsampling(%x, scale_h=2f, scale_w=2f, method="{}", layout="{}")',
        {"x": IMAGE},
        (("nearest_neighbor", "bilinear", "bicubic"), ("NCHW", "NHWC")),
    ),
    (
        'nn.upsampling3d(%x, scale_d=2f, scale_h=2f, scale_w=2f, method="{}", '
        'coordinate_transformation_mode="{}")',
        {"x": VOLUME},
        (("nearest_neighbor", "trilinear"), TRANSFORMS[:3]),
    ),
    (
        'image.grid_sample(%x, %g, method="{}", padding_mode="{}")',
        {"x": IMAGE, "g": (1, 2, 5, 5)},
        (("nearest", "bilinear", "bicubic"), ("zeros", "border", "reflection")),
    ),
    (
        'image.crop_and_resize(%x, %b, cast(%i, dtype="int32"), crop_size=[3, 3], method="{}", layout="{}")',
        {"x": IMAGE, "b": (2, 4), "i": (2,)},
        (("bilinear", "nearest_neighbor"), ("NCHW", "NHWC")),
    ),
    (
        'nn.pad(%x, 0f, pad_width=[[1, 2], [2, 1]], pad_mode="{}")',
        {"x": ROWS},
        (("constant", "edge", "reflect"),),
    ),
    ('nn.mirror_pad(%x, mode="{}", pad_width=[[1, 2], [2, 1]])', {"x": ROWS}, (("SYMMETRIC", "REFLECT"),)),
    (
        'nn.depth_to_space(%x, block_size=2, layout="{}", mode="{}")',
        {"x": (1, 4, 4, 4)},
        (("NCHW", "NHWC"), ("DCR", "CDR", "CRD")),
    ),
    (
        'scatter_elements(%x, cast(%i, dtype="int64"), %u, axis=1, reduction="{}")',
        {"x": ROWS, "i": (2, 2), "u": (2, 2)},
        (("update", "add", "mul", "mean", "min", "max"),),
    ),
    (
        'scatter_nd(%x, cast(%i, dtype="int64"), %u, mode="{}")',
        {"x": ROWS, "i": (2, 2), "u": (2,)},
        (("update", "add", "mul", "min", "max"),),
    ),
    ('take(%x, cast(%i, dtype="int32"), mode="{}")', {"x": ROWS, "i": (2,)}, (("clip", "wrap", "fast"),)),
    ('topk(%x, k=2, ret_type="{}")', {"x": ROWS}, (("both", "values", "indices"),)),
    (
        'vision.roi_align(%x, %r, pooled_size=[2, 2], spatial_scale=1f, layout="{}", mode="{}")',
        {"x": IMAGE, "r": REGIONS},
        (("NCHW", "NHWC"), ("avg", "max")),
    ),
    ('strided_slice(%x, begin=[0], end=[1], strides=[1], slice_mode="{}")', {"x": ROWS}, (("end", "size"),)),
    ('meshgrid((%x, %y), indexing="{}")', {"x": (3,), "y": (4,)}, (("ij", "xy"),)),
    (
        'nn.nll_loss(%x, cast(%t, dtype="int32"), %w, reduction="{}", ignore_index=-100)',
        {"x": ROWS, "t": (3,), "w": (4,)},
        (("mean", "sum", "none"),),
    ),
    (
        'qnn.requantize(cast(%x, dtype="int32"), 0.5f, 0, 0.25f, 0, rounding="{}", compute_dtype="{}", '
        'out_dtype="int8")',
        {"x": ROWS},
        (("UPWARD", "TONEAREST", "None"), ("int64", "float32", "float64", "None")),
    ),
    (
        'vision.all_class_non_max_suppression(%b, %s, 3, 0.5f, 0.1f, output_format="{}").0',
        {"b": (1, 5, 4), "s": (1, 2, 5)},
        (("onnx", "tensorflow"),),
    ),
)


def imported(call, shapes):
    """The module of one call."""
    declared = ", ".join(f"%{n}: Tensor[({', '.join(map(str, s))},), float32]" for n, s in shapes.items())
    text = f'#[version = "0.0.5"]\ndef @main({declared}) {{ {call} }}'
    return import_module(read_source(text, "t.relay"), params=None)


@pytest.mark.parametrize(
    ("call", "shapes", "choices"), CALLS, ids=lambda v: v[:24] if isinstance(v, str) else ""
)
def test_every_value_of_tvm_is_imported(call, shapes, choices):
    for values in itertools.product(*choices):
        assert imported(call.format(*values), shapes).main.body.ops
    with pytest.raises(InputError):
        imported(call.format(*["other"] * len(choices)), shapes)


@pytest.mark.parametrize("mode", ["CDR", "CRD"])
def test_blocks_below_their_channel(mode):
    """Channels count the output's channel first, then the row and the column in the block."""
    x = np.arange(8 * 3 * 4, dtype=np.float32).reshape(1, 8, 3, 4)
    call = f'nn.depth_to_space(%x, block_size=2, mode="{mode}")'
    (out,) = interpret(imported(call, {"x": x.shape}), x)
    for c, row, column in itertools.product(range(2), repeat=3):
        np.testing.assert_array_equal(out[0, c, row::2, column::2], x[0, 4 * c + 2 * row + column])


def test_space_to_depth_knows_one_order():
    """TVM keeps the attribute and ignores it."""
    x = np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4)
    call = "nn.space_to_depth(%x, block_size=2{})"
    (plain,), (named,) = (
        interpret(imported(call.format(m), {"x": x.shape}), x) for m in ("", ', mode="CDR"')
    )
    np.testing.assert_array_equal(plain, named)


@pytest.mark.parametrize(
    ("version", "read"),
    [("0.11.1", "IOW"), ("0.9.dev0", "IOW"), ("0.12.0", "OIW"), ("0.18.0", "OIW"), ("", "OIW")],
)
def test_letters_of_kernels_changed_with_tvm_0_12(version, read):
    """Before, transposed convolutions of one and three dimensions called the channels of the data O."""
    attrs = {"type_key": "relay.attrs.Conv1DTransposeAttrs", "attrs": {"kernel_layout": "2"}}
    layout = {"type_key": "runtime.String", "repr_str": "OIW"}
    document = {"root": 1, "nodes": [{"type_key": ""}, attrs, layout], "b64ndarrays": []}
    graph = JsonGraph({**document, "attrs": {"tvm_version": version}}, "m.json")
    assert NodeReader(graph).attributes(1)["kernel_layout"] == read
