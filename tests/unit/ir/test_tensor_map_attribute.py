"""The attributes `maps` and `cluster` of thread-level functions: text, verification, emitted parameters."""

import pytest

from tilewright.codegen import emit_cuda, emit_opencl
from tilewright.ir import InputError, UnsupportedError, parse, verify
from tilewright.ir.modules.compare import equal
from tilewright.ir.modules.printer import show
from tilewright.ir.thread.tensor_maps import ParameterMap, maps_of
from tilewright.runtime.plan.tensor_map import TensorMap, Window

TILED = 'map<parameter: 0, dtype: "f16", dims: [96, 256], strides: [512], box: [64, 64], swizzle: 128>'
IM2COL = (
    'map<parameter: 1, offset: 16, dtype: "f16", dims: [2, 14, 13, 72], strides: [26208, 1872, 144], '
    "steps: [1, 2, 2, 1], swizzle: 128, lower: [-1, -1], upper: [-1, -1], channels: 64, pixels: 128>"
)
KERNEL = """module @m {{
  thread.func @k(%x: f16[96, 256], %w: f16[3, 14, 13, 72], %y: f16[8], {maps}grid = [4, 1, 1], block = 128) {{
    %v = thread.load(%x, at = [0, 0]) : f16
    thread.store(%v, %y, at = [0])
    thread.return()
  }}
}}
"""


def kernel(attributes: str) -> str:
    return KERNEL.format(maps=attributes)


def test_maps_keep_their_text():
    m = parse(kernel(f"maps = [{TILED}, {IM2COL}], cluster = [2, 1, 1], "))
    verify(m)
    assert maps_of(m.funcs[0]) == (
        ParameterMap(0, TensorMap("float16", (96, 256), (512,), (64, 64), swizzle=128)),
        ParameterMap(
            1,
            TensorMap("float16", (2, 14, 13, 72), (26208, 1872, 144), steps=(1, 2, 2, 1), swizzle=128,
                      window=Window((-1, -1), (-1, -1), 64, 128)),
            16,
        ),
    )  # fmt: skip
    assert TILED in show(m)
    assert IM2COL in show(m)
    assert equal(parse(show(m)), m)


def test_a_map_that_rounds_float32_to_tf32():
    text = (
        kernel('maps = [map<parameter: 0, dtype: "tf32", dims: [96, 256], strides: [1024], box: [64, 32]>], ')
        .replace("%x: f16", "%x: f32")
        .replace("at = [0, 0]) : f16", "at = [0, 0]) : f32")
        .replace("%y: f16", "%y: f32")
    )
    m = parse(text)
    verify(m)
    (found,) = maps_of(m.funcs[0])
    assert found.recipe == TensorMap("tfloat32", (96, 256), (1024,), (64, 32))
    assert found.recipe.itemsize == 4
    assert equal(parse(show(m)), m)


@pytest.mark.parametrize(
    ("attributes", "clause"),
    [
        (f"maps = [{TILED.replace('parameter: 0', 'parameter: 3')}], ", "expected a parameter among 3"),
        (f"maps = [{TILED.replace('[512]', '[520]')}], ", "map 0: expected strides that are multiples of 16"),
        (f"maps = [{TILED.replace('[96, ', '[97, ')}], ", "map 0: expected a map within the 49152 bytes"),
        (f"maps = [{TILED.replace('f16', 'i32').replace('64]', '32]')}], ", "elements of the size of those"),
        (f"maps = [{IM2COL.replace('offset: 16', 'offset: 8')}], ", "an offset that is a multiple of 16"),
        ("maps = [3], ", "expected maps to list maps"),
        ("cluster = [3, 1, 1], ", "expected a grid of whole clusters of [3, 1, 1] blocks, got [4, 1, 1]"),
        ("cluster = [8, 4, 1], ", "expected a cluster of at most 16 blocks"),
        ("cluster = [2, 1], ", "expected cluster = [x, y, z] blocks"),
    ],
)  # fmt: skip
def test_each_fault_has_one_clause(attributes, clause):
    with pytest.raises(InputError) as error:
        verify(parse(kernel(attributes)))
    assert clause in str(error.value)
    assert "faults" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        (TILED.replace("box", "bax"), "expected parameter, offset, .* in map, got 'bax'"),
        (TILED.replace(', dtype: "f16"', ""), "expected 'dtype' in map"),
        (TILED.replace("swizzle: 128", 'swizzle: "x"'), "expected swizzle in map to be an integer, got 'x'"),
        (IM2COL.replace(", pixels: 128", ""), "expected 'pixels' in map, which has 'lower'"),
    ],
)
def test_text_that_is_no_map_is_refused_at_its_place(text, clause):
    with pytest.raises(InputError, match=rf"<text>:2:\d+: {clause}"):
        parse(kernel(f"maps = [{text}], "))


def test_a_kernel_takes_its_maps_behind_its_pointers():
    source = emit_cuda(parse(kernel(f"maps = [{TILED}, {IM2COL}], cluster = [2, 1, 1], ")).funcs[0])
    head = source.source[source.source.index('extern "C"') :]
    assert "__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 1) k(" in head
    order = [
        head.index(t) for t in ("y,", "const __grid_constant__ tw_tensor_map x_map,", "tw_tensor_map w_map)")
    ]
    assert order == sorted(order)
    assert "if (threadIdx.x == 0) tw_prefetch_map(x_map);" in head
    assert (len(source.maps), source.cluster, len(source.params)) == (2, (2, 1, 1), 3)


def test_opencl_has_neither_maps_nor_clusters():
    with pytest.raises(UnsupportedError, match="tensor maps and clusters need CUDA, not opencl"):
        emit_opencl(parse(kernel(f"maps = [{TILED}], ")).funcs[0])
