"""Parameter files: round trips, the bytes TVM writes, files that lie."""

import contextlib
import struct
import zipfile
import zlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tilewright.frontends.weights.files import load_param_dict, load_params, save_param_dict
from tilewright.frontends.weights.random_weights import random_input, random_weight
from tilewright.ir import InputError

DTYPES = [
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    "float16", "float32", "float64", "bool",
]  # fmt: skip
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
    )
)


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return list(left) == list(right) and all(
        left[n].dtype == right[n].dtype
        and left[n].shape == right[n].shape
        and left[n].tobytes() == right[n].tobytes()
        for n in left
    )


@given(st.dictionaries(st.text(max_size=8).filter(str.isprintable), ARRAYS, max_size=4))
def test_round_trip(params):
    assert same(load_param_dict(save_param_dict(params)), params)


def test_bfloat16_and_big_endian_arrays():
    params = {"b": np.arange(4).astype(ml_dtypes.bfloat16), "e": np.arange(3, dtype=">f4")}
    back = load_param_dict(save_param_dict(params))
    assert same({"b": back["b"]}, {"b": params["b"]})
    assert back["e"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["mlp", "resnet20_cifar"])
def test_bytes_are_those_of_tvm(name, data_dir):
    data = (data_dir / "relay" / f"{name}.params").read_bytes()
    assert save_param_dict(load_param_dict(data)) == data


def test_other_formats(tmp_path):
    params = {"a.b": np.arange(6, dtype="float32").reshape(2, 3), "c": np.array([True])}
    np.savez(tmp_path / "p.npz", **params)
    safetensors.numpy.save_file(params, tmp_path / "p.safetensors")
    (tmp_path / "p.params").write_bytes(save_param_dict(params))
    for name in ("p.npz", "p.safetensors", "p.params"):
        loaded = load_params(tmp_path / name)
        assert same({n: loaded[n] for n in params}, params)


def fault(data: bytes) -> str:
    with pytest.raises(InputError) as error:
        load_param_dict(data, "p")
    return str(error.value)


GOOD = save_param_dict({"w": np.arange(6, dtype="float32").reshape(2, 3)})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected 16 bytes of a parameter dictionary's header, got 0"),
        (b"\0" * 16, "expected a Relay parameter dictionary"),
        (GOOD[:16] + struct.pack("<Q", 2**63) + GOOD[24:], "expected"),
        (GOOD[:24] + struct.pack("<Q", 2**40) + GOOD[32:], "expected a name of at most"),
        (GOOD[:32] + b"\xff" + GOOD[33:], "expected a name in UTF-8"),
        (GOOD[:33] + struct.pack("<Q", 7) + GOOD[41:], "expected one tensor for each of 1 distinct names"),
        (GOOD[:41] + b"\0" + GOOD[42:], "expected a tensor record"),
        (GOOD[:65] + struct.pack("<i", 99) + GOOD[69:], "expected a tensor of 0 to 32 dimensions, got 99"),
        (GOOD[:69] + b"\7" + GOOD[70:], "expected a dtype that arrays have, got code 7"),
        (GOOD[:71] + b"\2" + GOOD[72:], "2 lanes"),
        (GOOD[:73] + struct.pack("<q", -2) + GOOD[81:], "expected dimensions of at least 0"),
        (GOOD[:73] + struct.pack("<q", 2**60) + GOOD[81:], "bytes for float32"),
        (GOOD[:73] + struct.pack("<qqq", 2**40, 1, 2**42) + GOOD[97:], "expected 4398046511104 bytes"),
        (GOOD[:-1], "expected 24 bytes of tensor data, got 23"),
        (GOOD + b"x", "expected the end of the file, got 1 more bytes"),
    ],
)  # fmt: skip
def test_lies_in_a_parameter_dictionary(data, message):
    assert message in fault(data)


@given(st.data())
def test_damaged_bytes_are_an_input_error_or_fine(data):
    at = data.draw(st.integers(0, len(GOOD)))
    piece = data.draw(st.binary(max_size=9))
    with contextlib.suppress(InputError):
        load_param_dict(GOOD[:at] + piece + GOOD[at + data.draw(st.integers(0, 20)) :])


def test_object_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "p.npz", a=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"expected an \.npz file of plain arrays"):
        load_params(tmp_path / "p.npz")


def test_strings_are_refused(tmp_path):
    np.savez(tmp_path / "p.npz", a=np.array(["x"]))
    with pytest.raises(InputError, match="expected numbers in 'a'"):
        load_params(tmp_path / "p.npz")


def test_npz_whose_header_claims_a_huge_array(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,), }"
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(InputError):
        load_params(tmp_path / "p.npz")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@given(data=st.data())
def test_damaged_files_are_an_input_error_or_fine(suffix, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    params = {"w": np.arange(6, dtype="float32")}
    path = folder / f"p.{suffix}"
    np.savez_compressed(path, **params) if suffix == "npz" else safetensors.numpy.save_file(params, path)
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good)))
    path.write_bytes(good[:at] + data.draw(st.binary(max_size=4)) + good[at + data.draw(st.integers(0, 8)) :])
    with contextlib.suppress(InputError):
        load_params(path)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="cannot read the parameters: No such file"):
        load_params(tmp_path / "none.params")


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "checksum"),
    [
        ("fc1_weight", (128, 784), "float32", 0x0F013487),
        ("bn_gamma", (64,), "float32", 0x3DCF4FC1),
        ("bn_beta", (64,), "float16", 0xE7B1A8DB),
        ("s", (), "float32", 0x3848B84A),
        ("m", (5,), "bool", 0xE259EFEC),
        ("t", (7, 3), "int64", 0x5A66DBFC),
        ("w", (4, 3, 2, 2), "float64", 0x835C9DCF),
    ],
)
def test_seed_0_gives_the_values_behind_the_reference_outputs(name, shape, dtype, checksum):
    assert zlib.crc32(random_weight(name, shape, dtype).tobytes()) == checksum


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "checksum"),
    [
        ("data", (1, 3, 8, 8), "float32", 0xCC8282D2),
        ("ids", (1, 128), "int64", 0x9D009A8D),
        ("x", (), "float32", 0x936F7DEC),
    ],
)
def test_seed_0_gives_the_reference_inputs(name, shape, dtype, checksum):
    assert zlib.crc32(random_input(name, shape, dtype).tobytes()) == checksum


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "low", "high"),
    [
        ("bn_gamma", (64,), "float32", 0.8, 1.2),
        ("bn_moving_var", (64,), "float32", 0.8, 1.2),
        ("bn_beta", (64,), "float16", -0.1, 0.1),
        ("scalar", (), "float64", -0.1, 0.1),
        ("mask", (64,), "bool", 0, 1),
        ("table", (64,), "int64", 0, 1),
        ("w", (4, 3, 2, 2), "float32", -0.5, 0.5),
    ],
)
def test_range_of_random_weights(name, shape, dtype, low, high):
    value = random_weight(name, shape, dtype)
    assert value.shape == shape
    assert value.dtype == dtype
    assert low <= value.min() <= value.max() <= high
    assert np.array_equal(value, random_weight(name, shape, dtype))


def test_seed_and_name_change_the_values():
    first = random_weight("w", (8,), "float32")
    assert not np.array_equal(first, random_weight("w", (8,), "float32", seed=1))
    assert not np.array_equal(first, random_weight("v", (8,), "float32"))


def test_random_inputs():
    assert random_input("ids", (50,), "int64").max() > 100
    assert random_input("x", (1000,), "float32").std() == pytest.approx(1, abs=0.1)


def test_huge_parameter_is_refused():
    with pytest.raises(InputError, match="expected at most"):
        random_weight("w", (2**40, 2**40), "float32")
