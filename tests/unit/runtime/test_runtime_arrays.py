"""What a caller may hand to a device: exact shapes and dtypes, any layout, NumPy or DLPack."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_samples import diamond, random_floats

from tilewright.runtime import dlpack
from tilewright.runtime.dtypes import DTYPES, dtype_named
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.arrays import check_constants, host_array, host_inputs
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan

PLAN = diamond()


def buffer_for(array: np.ndarray) -> Buffer:
    return Buffer("x", array.dtype.name, array.shape, "input", array.nbytes)


class Exporter:
    """A DLPack producer that is no NumPy array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **_: object) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OwnExporter(Exporter):
    """A producer that goes through our own capsules."""

    def __dlpack__(self, **_: object) -> object:
        a = self.array
        return dlpack.make_capsule(a.ctypes.data, dlpack.CPU, 0, a.dtype.name, a.shape, a)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"expected 1 inputs \(x\), got 0"),
        ([random_floats(0)] * 2, r"expected 1 inputs \(x\), got 2"),
        ([random_floats(0)[:4]], r"input 'x': expected shape \[1024\], got \[4\]"),
        ([random_floats(0)[None]], r"input 'x': expected shape \[1024\], got \[1, 1024\]"),
        ([np.zeros(1024)], "input 'x': expected dtype float32, got float64"),
        ([np.zeros(1024, np.int32)], "input 'x': expected dtype float32, got int32"),
        ([np.zeros(1024, object)], "input 'x': expected dtype float32, got object"),
        ([[0.0] * 1024], "input 'x': expected a NumPy or DLPack array, got list"),
        ([None], "input 'x': expected a NumPy or DLPack array, got NoneType"),
    ],
)
def test_wrong_inputs_are_named(values, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        host_inputs(PLAN, values)


def test_wrong_constants_are_named():
    w = random_floats(0)
    np.testing.assert_array_equal(check_constants(PLAN, {"w": w})["w"], w)
    for constants, message in (
        ({}, "constant 'w' is missing"),
        ({"w": w, "q": w}, "no constant 'q'"),
        ({"w": w[:2]}, "constant 'w': expected shape"),
    ):
        with pytest.raises(InputError, match=message):
            check_constants(PLAN, constants)


@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 4), max_size=4),
    st.data(),
)
def test_every_layout_and_type_arrives_unchanged(dtype, shape, data):
    count = int(np.prod(shape, dtype=int))
    array = (np.arange(count) % 2).reshape(shape).astype(DTYPES[dtype])
    array = array.transpose(data.draw(st.permutations(range(len(shape)))))
    if array.ndim and data.draw(st.booleans()):
        array = array[:: data.draw(st.sampled_from([-2, -1, 2]))]
    producers = [array]
    if array.dtype not in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        producers.append(Exporter(array))
    producers.append(OwnExporter(np.ascontiguousarray(array).reshape(array.shape)))
    for producer in producers:
        result = host_array(producer, buffer_for(array), "input")
        assert result.flags.c_contiguous
        assert result.dtype == array.dtype
        np.testing.assert_array_equal(result, array)


def test_foreign_byte_order_is_swapped():
    array = np.arange(4, dtype=">f4")
    result = host_array(array, Buffer("x", "float32", (4,), "input", 16), "input")
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, array)


def test_producers_that_refuse_are_reported():
    class Refuses(Exporter):
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("it requires a gradient")

    class Elsewhere(Exporter):
        def __dlpack_device__(self) -> tuple[int, int]:
            return dlpack.CUDA, 0

    class NoCapsule(Exporter):
        def __dlpack__(self, **_: object) -> object:
            return 7

    x = random_floats(0)
    for producer, message in (
        (Refuses(x), "requires a gradient"),
        (Elsewhere(x), "device type 2"),
        (NoCapsule(x), "no fresh dltensor capsule"),
        (Exporter(np.zeros(1024, complex)), "element type"),
        (Exporter(x[:4]), "expected shape"),
    ):
        with pytest.raises(InputError, match=f"input 'x'.*{message}"):
            host_inputs(PLAN, [producer])


def test_our_capsules_keep_their_owner_and_free_it():
    array = random_floats(0)
    owner, wanted = weakref.ref(array), array.copy()
    capsule = OwnExporter(array).__dlpack__()
    del array
    gc.collect()
    np.testing.assert_array_equal(owner(), wanted)
    del capsule
    gc.collect()
    assert owner() is None


def test_who_consumes_our_capsules_keeps_their_owner():
    array = random_floats(0)
    owner, wanted = weakref.ref(array), array.copy()
    consumed = np.from_dlpack(OwnExporter(array))
    del array
    gc.collect()
    assert owner() is not None
    np.testing.assert_array_equal(consumed, wanted)
    del consumed
    gc.collect()
    assert owner() is None


def test_dtype_names():
    assert dtype_named("bfloat16").itemsize == 2
    with pytest.raises(InputError, match="'float8'"):
        dtype_named("float8")


def test_an_array_that_fits_is_handed_on_itself():
    """Digests of weights are kept by array: a view made anew at every load would be hashed every time."""
    plan = ExecutionPlan("null", (Buffer("w", "float32", (2, 3), "constant", 24),), (), (), (), (), 0)
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert check_constants(plan, {"w": w})["w"] is w
