"""Tensor maps in plans: the rules of the driver, files, and what a GPU's driver is asked, on a stand-in."""

# ruff: noqa: N802 - the names are those of the driver

import ctypes
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tests.samples.gpu_samples import SUCCESS, Gpu
from tilewright.compilation.kernel_builds import launch_maps
from tilewright.plan_text.reading import plan_of_module
from tilewright.plan_text.writing import plan_module
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.launch import prepare_launches
from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.plan.check import find_faults, validate
from tilewright.runtime.plan.execution_plan import (
    Buffer,
    ExecutionPlan,
    KernelCode,
    KernelContract,
    Launch,
    version_for,
)
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json
from tilewright.runtime.plan.tensor_map import LaunchMap, TensorMap, Window, map_faults

TILED = TensorMap("float16", (96, 256), (512,), (64, 64), swizzle=128)
IM2COL = TensorMap(
    "float16", (3, 14, 13, 72), (26208, 1872, 144), swizzle=128, steps=(1, 2, 2, 1),
    window=Window((-1, -1), (-1, -1), 64, 128),
)  # fmt: skip


def changed(recipe: TensorMap, **changes: Any) -> TensorMap:
    window = {k: changes.pop(k) for k in ("lower", "upper", "channels", "pixels") if k in changes}
    if window:
        assert recipe.window is not None
        changes["window"] = dataclasses.replace(recipe.window, **window)
    return dataclasses.replace(recipe, **changes)


@pytest.mark.parametrize(
    ("recipe", "clause"),
    [
        (changed(TILED, dtype="bool"), "an element type among"),
        (changed(TILED, dims=(1,) * 6, strides=(16,) * 5, box=(8,) * 6), "1 to 5 dimensions, got 6"),
        (changed(TILED, strides=()), "a stride per dimension but the last, 1, got 0"),
        (changed(TILED, strides=(520,)), "multiples of 16 bytes below 2^40, got [520]"),
        (changed(TILED, strides=(1 << 40,)), "multiples of 16 bytes below 2^40"),
        (changed(TILED, dims=(96, 0)), "extents from 1 to 4294967296"),
        (changed(TILED, box=(257, 64)), "a box of extents from 1 to 256, got [257, 64]"),
        (changed(TILED, box=(64,)), "a box of 2 extents, got 1"),
        (changed(TILED, box=(64, 65)), "rows of a multiple of 16 bytes, got 130"),
        (changed(TILED, box=(64, 72)), "rows of at most the 128 bytes of the swizzle, got 144"),
        (changed(TILED, steps=(9, 1)), "steps from 1 to 8, got [9, 1]"),
        (changed(TILED, steps=(1, 2)), "step 1 of the last dimension"),
        (changed(TILED, swizzle=16), "swizzle to be one of 0, 32, 64, 128, got 16"),
        (changed(TILED, promotion=32), "promotion to be one of 0, 64, 128, 256, got 32"),
        (changed(TILED, fill="one"), "fill to be one of zero, nan, got 'one'"),
        (changed(TILED, dtype="int32", box=(64, 32), fill="nan"), "fill zero of int32"),
        (changed(IM2COL, box=(1, 1, 1, 1)), "no box in an im2col map"),
        (changed(IM2COL, lower=(-129, 0)), "corners from -128 to 127 in 4 dimensions"),
        (changed(IM2COL, lower=(0,)), "corners of 2 offsets, got [0]"),
        (changed(IM2COL, upper=(-15, 0)), "corners that leave a window"),
        (changed(IM2COL, channels=257, swizzle=0), "1 to 256 channels per pixel, got 257"),
        (changed(IM2COL, pixels=1025), "1 to 1024 pixels per column, got 1025"),
        (changed(IM2COL, channels=4), "rows of a multiple of 16 bytes, got 8"),
        (changed(IM2COL, steps=(2, 2, 2, 1)), "step 1 of the images"),
        (
            changed(TILED, box=(), window=Window((), (), 64, 64)),
            "3 to 5 dimensions (images, space, channels)",
        ),
    ],
)
def test_each_rule_of_the_driver_has_its_clause(recipe, clause):
    faults = list(map_faults(recipe))
    assert len(faults) == 1
    assert clause in faults[0]


def test_limits_themselves_are_allowed():
    most = changed(TILED, strides=((1 << 40) - 16,), box=(256, 64), dims=(1 << 32, 256))
    for recipe in (TILED, IM2COL, most, changed(IM2COL, pixels=1024), changed(TILED, strides=(16,))):
        assert not list(map_faults(recipe))


def test_a_copy_counts_the_elements_that_it_brings():
    assert TILED.transaction_bytes == 64 * 64 * 2
    assert changed(TILED, box=(63, 64), steps=(2, 1)).tile == (32, 64)
    assert IM2COL.transaction_bytes == 128 * 64 * 2
    assert TILED.span == 95 * 512 + 256 * 2
    assert changed(TILED, dims=(65, 64), strides=(16,)).span == 64 * 16 + 64 * 2


def plan_of(*maps: LaunchMap, grid: int = 4, cluster: int = 2, **changes: Any) -> ExecutionPlan:
    buffers = (
        Buffer("x", "float16", (96, 256), "input", 96 * 512),
        Buffer("w", "float16", (3, 14, 13, 72), "constant", 78624),
        Buffer("y", "float16", (96, 256), "arena", 96 * 512),
    )
    launch = Launch(
        "k", ("x", "w", "y"), (grid, 1, 1), 128, writes=(2,), maps=maps, cluster=(cluster, 1, 1), **changes
    )
    contract = KernelContract((grid, 1, 1), 128, 0, (96 * 512, 78624, 96 * 512), (2,), maps, (cluster, 1, 1))
    kernel = KernelCode("k", "k", "cuda", "text", b"binary", "sm_90a", contract=contract)
    version = version_for(buffers, (launch,))
    return ExecutionPlan(
        "cuda:sm_90a", buffers, (kernel,), (launch,), ("x",), ("y",), 96 * 512, format_version=version
    )


PLAN = validate(
    plan_of(LaunchMap(0, 0, TILED), LaunchMap(1, 0, IM2COL), LaunchMap(2, 16, changed(TILED, dims=(95, 256))))
)


def test_maps_pass_through_both_forms_of_files():
    assert PLAN.format_version == 3
    kept = {"sources": {"k": "text"}, "binaries": {"k": b"binary"}}
    assert plan_from_json(plan_to_json(PLAN, sources=False), **kept) == PLAN  # type: ignore[arg-type]
    assert plan_of_module(plan_module(PLAN), **kept) == PLAN  # type: ignore[arg-type]


def test_a_plan_without_maps_is_the_text_that_earlier_versions_read():
    text = plan_to_json(plan_of(cluster=1))
    assert '"format_version": 1' in text
    assert "maps" not in text
    assert "cluster" not in text


@pytest.mark.parametrize(
    ("plan", "clause"),
    [
        (plan_of(LaunchMap(3, 0, TILED)), "map 0: expected the position of one of 3 arguments, got 3"),
        (plan_of(LaunchMap(0, 512, TILED)), "its last element ends at byte 49664 of 'x', which has 49152"),
        (plan_of(LaunchMap(0, 8, changed(TILED, dims=(95, 256)))), "begins at byte 8 of 'x', not"),
        (plan_of(LaunchMap(0, 0, changed(TILED, box=(300, 64)))), "map 0: expected a box of extents"),
        (plan_of(grid=3), "expected a grid of whole clusters of (2, 1, 1) blocks, got (3, 1, 1)"),
        (plan_of(grid=32, cluster=32), "expected a cluster of three extents in 1..16"),
        (plan_of().replace(format_version=2), "expected format version 3, got 2"),
        (
            PLAN.replace(launches=(dataclasses.replace(PLAN.launches[0], maps=PLAN.launches[0].maps[::-1]),)),
            "tensor maps",
        ),
        (
            PLAN.replace(launches=(dataclasses.replace(PLAN.launches[0], cluster=(4, 1, 1)),)),
            "expected a cluster (2, 1, 1) that its kernel was made for, got (4, 1, 1)",
        ),
    ],
)  # fmt: skip
def test_the_plan_check_names_the_launch_and_the_map(plan, clause):
    assert clause in "; ".join(find_faults(plan))


def test_a_file_with_a_map_of_another_type_is_refused():
    text = plan_to_json(PLAN).replace('"swizzle": 128', '"swizzle": "128"', 1)
    with pytest.raises(InputError, match="expected swizzle to be of type int"):
        plan_from_json(text, binaries={"k": b"binary"})


def words(prefix: str, names: str) -> SimpleNamespace:
    return SimpleNamespace(**{f"CU_{prefix}_{n}": n for n in names.split()})


class Encoding(Gpu):
    """A driver that encodes a map as its number and its address, and says how large parameters are."""

    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0,
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH=1,
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT=2,
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH=3,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
    )
    CUtensorMapDataType = words("TENSOR_MAP_DATA_TYPE", "FLOAT16")
    CUtensorMapSwizzle = words("TENSOR_MAP_SWIZZLE", "NONE 128B")
    CUtensorMapInterleave = words("TENSOR_MAP_INTERLEAVE", "NONE")
    CUtensorMapL2promotion = words("TENSOR_MAP_L2_PROMOTION", "L2_128B")
    CUtensorMapFloatOOBfill = words("TENSOR_MAP_FLOAT_OOB_FILL", "NONE")
    cuuint32_t = cuuint64_t = int

    def __init__(self, sizes: tuple[int, ...] = (8, 8, 8, 128, 128, 128), width: int = 2) -> None:
        super().__init__(0, [])
        self.sizes, self.width, self.encoded = sizes, width, list[tuple[Any, ...]]()

    def cuFuncGetAttribute(self, attribute: int, function: int) -> tuple[Any, int]:
        return SUCCESS, (1024, self.width, 1, 1)[attribute]

    def cuFuncGetParamInfo(self, function: int, position: int) -> tuple[Any, int, int]:
        if position >= len(self.sizes):
            return SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE"), 0, 0
        return SUCCESS, 0, self.sizes[position]

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple[Any, Any]:
        self.encoded.append(("tiled", *arguments))
        return SUCCESS, SimpleNamespace(opaque=[len(self.encoded), arguments[2], *[0] * 14])

    def cuTensorMapEncodeIm2col(self, *arguments: Any) -> tuple[Any, Any]:
        self.encoded.append(("im2col", *arguments))
        return SUCCESS, SimpleNamespace(opaque=[len(self.encoded), arguments[2], *[0] * 14])


ADDRESSES = {"x": 1 << 20, "w": 2 << 20, "y": 3 << 20}


def prepared(gpu: Encoding, addresses: dict[str, int] = ADDRESSES) -> Any:
    context: Any = Context(gpu, 0)  # type: ignore[arg-type]  # a stand-in for the driver
    none: Any = None
    (launch,) = prepare_launches(context, PLAN, {"k": 7}, addresses, none)
    return launch


def test_maps_are_encoded_for_their_addresses_and_passed_behind_the_pointers():
    gpu = Encoding()
    launch = prepared(gpu)
    pointers = list((ctypes.c_void_p * 6).from_address(launch.parameters()))
    assert all(p % 64 == 0 for p in pointers[3:])
    given = [list((ctypes.c_uint64 * 2).from_address(p)) for p in pointers[3:]]
    assert given == [[1, 1 << 20], [2, 2 << 20], [3, (3 << 20) + 16]]
    kind, dtype, rank, address, dims, strides, box, steps, *rest = gpu.encoded[0]
    assert (kind, dtype, rank, address) == ("tiled", "FLOAT16", 2, 1 << 20)
    assert (dims, strides, box, steps) == ([256, 96], [512], [64, 64], [1, 1])  # innermost first
    assert rest == ["NONE", "128B", "L2_128B", "NONE"]
    _, _, rank, _, dims, strides, lower, upper, channels, pixels, steps, *_ = gpu.encoded[1]
    assert (rank, dims, strides) == (4, [72, 13, 14, 3], [144, 1872, 26208])
    assert (lower, upper, channels, pixels, steps) == ([-1, -1], [-1, -1], 64, 128, [1, 2, 2, 1])


def test_each_loaded_plan_encodes_for_its_own_addresses():
    gpu = Encoding()
    first, second = prepared(gpu), prepared(gpu, {n: a + (1 << 30) for n, a in ADDRESSES.items()})
    one, other = (
        (ctypes.c_uint64 * 2).from_address((ctypes.c_void_p * 6).from_address(launch.parameters())[3])
        for launch in (first, second)
    )
    assert (one[1], other[1]) == (1 << 20, (1 << 20) + (1 << 30))


@pytest.mark.parametrize(
    "sizes", [(8, 8, 8), (8, 8, 8, 128, 128), (8, 8, 8, 128, 128, 8), (8, 8, 8, 128, 128, 128, 8)]
)
def test_a_kernel_of_other_parameters_is_refused(sizes):
    with pytest.raises(DeviceError, match="does not take 3 pointers and 3 tensor maps"):
        prepared(Encoding(sizes))


def test_a_kernel_of_other_clusters_is_refused():
    with pytest.raises(DeviceError, match=r"asks for clusters of \(2, 1, 1\) blocks; .* \(4, 1, 1\)"):
        prepared(Encoding(width=4))


def test_kernels_without_maps_give_none():
    source: Any = SimpleNamespace(maps=())
    assert launch_maps(source) == ()
