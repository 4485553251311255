"""Saved executables: exact round trip, nothing half-written, every attack is one clear error."""

import hashlib
import io
import json
import os
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_samples import diamond, random_floats

from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan import container
from tilewright.runtime.plan.container import SavedExecutable, read_saved, write_container
from tilewright.runtime.plan.tensor_file import read_tensors, write_tensors

W = random_floats(0)


def sample() -> SavedExecutable:
    plan = diamond("cuda", {"scale": b"\x7fELF one", "shift": b"\x7fELF two"}, "sm_90a")
    return SavedExecutable(plan, {"w": W}, {"graph": "module @net { }\n" * 50}, {"compiler": "0.1.0"})


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "net.tw"
    write_container(path, sample())
    return path.read_bytes()


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path, members: dict[str, bytes], *, rehash: bool = True, compress: str = "") -> None:
    members = dict(members)
    if rehash:
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"] = {
            name: hashlib.sha256(data).hexdigest()
            for name, data in members.items()
            if name != "manifest.json"
        }
        members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            kind = zipfile.ZIP_DEFLATED if name == compress else zipfile.ZIP_STORED
            archive.writestr(name, data, compress_type=kind)


def test_round_trip(tmp_path):
    saved = sample()
    path = tmp_path / "net.tw"
    write_container(path, saved)
    loaded = read_saved(path)
    assert loaded.plan == saved.plan
    assert loaded.texts == saved.texts
    assert loaded.facts == saved.facts
    np.testing.assert_array_equal(loaded.constants["w"], W)
    assert os.listdir(tmp_path) == ["net.tw"]


def test_equal_content_gives_equal_bytes(tmp_path, good):
    write_container(tmp_path / "again.tw", sample())
    assert (tmp_path / "again.tw").read_bytes() == good


def test_repackaging_is_accepted(tmp_path, good):
    """The attacks below change one thing each; without a change the same packing must load."""
    pack(tmp_path / "net.tw", members_of(good))
    assert read_saved(tmp_path / "net.tw").plan == sample().plan


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "net.tw"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container.os, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        write_container(path, sample())
    assert os.listdir(tmp_path) == ["net.tw"]
    assert path.read_bytes() == b"old"


def test_bad_arguments_of_writing(tmp_path):
    saved = sample()
    with pytest.raises(InputError, match="cannot be written"):
        write_container(tmp_path / "no" / "net.tw", saved)
    with pytest.raises(InputError, match="constant 'w' is missing"):
        write_container(tmp_path / "net.tw", SavedExecutable(saved.plan, {}))
    with pytest.raises(InputError, match="IR text's name"):
        write_container(tmp_path / "net.tw", SavedExecutable(saved.plan, {"w": W}, {"../x": ""}))
    assert os.listdir(tmp_path) == []


def refused(path) -> str:
    with pytest.raises(InputError) as caught:
        read_saved(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message) < 1000
    return message


def test_missing_file_and_folder(tmp_path):
    assert "cannot be read" in refused(tmp_path / "none.tw")
    assert "cannot be read" in refused(tmp_path)


MEMBER_ATTACKS = {
    "no manifest": (lambda m: m.pop("manifest.json"), "no manifest.json", False),
    "no plan": (lambda m: m.pop("plan.json"), "'plan.json' is missing", True),
    "no weights": (lambda m: m.pop("weights.safetensors"), "is missing", True),
    "stray path": (lambda m: m.update({"../../evil.ir": b""}), "no part of", True),
    "absolute path": (lambda m: m.update({"/etc/evil.ir": b""}), "no part of", True),
    "backslash": (lambda m: m.update({"ir\\evil.ir": b""}), "no part of", True),
    "pickle": (lambda m: m.update({"weights.pkl": b"\x80"}), "no part of", True),
    "unlisted": (lambda m: m.update({"ir/more.ir": b""}), "not both in", False),
    "wrong hash": (lambda m: m.update({"ir/graph.ir": b"other"}), "hash", False),
    "stray kernel": (lambda m: m.update({"kernels/q.cu": b""}), "no kernel 'q'", True),
    "two sources": (lambda m: m.update({"kernels/scale.cl": b""}), "two sources", True),
    "no source": (lambda m: m.pop("kernels/scale.cu"), "source of kernel", True),
    "no binary": (lambda m: m.pop("kernels/scale.cubin"), "binary of kernel", True),
    "not UTF-8": (lambda m: m.update({"ir/graph.ir": b"\xff"}), "UTF-8", True),
    "plan is a list": (lambda m: m.update({"plan.json": b"[]"}), "expected an object", True),
    "other weights": (lambda m: m.update({"weights.safetensors": write_tensors({"v": W})}), "constant", True),
    "short weights": (
        lambda m: m.update({"weights.safetensors": write_tensors({"w": W[:4]})}),
        "shape",
        True,
    ),
    "no safetensors": (lambda m: m.update({"weights.safetensors": b"12345678"}), "safetensors", True),
}


@pytest.mark.parametrize("attack", MEMBER_ATTACKS)
def test_member_attacks(tmp_path, good, attack):
    change, expected, rehash = MEMBER_ATTACKS[attack]
    members = members_of(good)
    change(members)
    pack(tmp_path / "net.tw", members, rehash=rehash)
    assert expected in refused(tmp_path / "net.tw")


MANIFEST_ATTACKS = {
    "version": ({"container_version": 3}, "container version"),
    "version is text": ({"container_version": "1"}, "type int"),
    "version is true": ({"container_version": True}, "type int"),
    "target": ({"target": "cuda:sm_75"}, "target"),
    "facts": ({"facts": []}, "type dict"),
    "extra": ({"more": 1}, "unknown key"),
}


@pytest.mark.parametrize("attack", MANIFEST_ATTACKS)
def test_manifest_attacks(tmp_path, good, attack):
    changes, expected = MANIFEST_ATTACKS[attack]
    members = members_of(good)
    members["manifest.json"] = json.dumps(json.loads(members["manifest.json"]) | changes).encode()
    pack(tmp_path / "net.tw", members, rehash=False)
    assert expected in refused(tmp_path / "net.tw")


def test_bombs(tmp_path, good):
    members = members_of(good)
    members["ir/graph.ir"] = bytes(8 << 20)
    pack(tmp_path / "ratio.tw", members, compress="ir/graph.ir")
    assert "claims to unpack" in refused(tmp_path / "ratio.tw")
    members = members_of(good)
    pack(tmp_path / "weights.tw", members, compress="weights.safetensors")
    assert "unexpected way" in refused(tmp_path / "weights.tw")
    members["ir/graph.ir"] = os.urandom(64) * ((33 << 20) // 64)
    pack(tmp_path / "text.tw", members)
    assert "bytes of text" in refused(tmp_path / "text.tw")


def test_duplicate_members(tmp_path, good):
    path = tmp_path / "net.tw"
    pack(path, members_of(good))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("plan.json", "{}")
    assert "twice" in refused(path)


def test_too_many_members(tmp_path, good, monkeypatch):
    monkeypatch.setattr(container, "MAX_MEMBERS", 3)
    (tmp_path / "net.tw").write_bytes(good)
    assert "at most 3 members" in refused(tmp_path / "net.tw")


def test_overlapping_members(tmp_path, good):
    """A directory entry that claims the whole file as its own bytes."""
    directory_at = good.rindex(b"PK\x05\x06")
    fields = struct.unpack("<4s4H2LH", good[directory_at : directory_at + 22])
    entries = good[fields[6] : fields[6] + fields[5]]
    at = entries.index(b"ir/graph.ir") - 46
    entry = bytearray(entries[at:])
    struct.pack_into("<LL", entry, 20, len(good), len(good))
    struct.pack_into("<H", entry, 10, zipfile.ZIP_STORED)
    (tmp_path / "net.tw").write_bytes(good[: fields[6]] + entries[:at] + bytes(entry) + good[directory_at:])
    assert "overlap" in refused(tmp_path / "net.tw")


@given(cut=st.integers(0, 1 << 20))
def test_truncation(tmp_path_factory, good, cut):
    path = tmp_path_factory.mktemp("cut") / "net.tw"
    path.write_bytes(good[: cut % len(good)])
    refused(path)


@given(data=st.data())
def test_flipped_bytes_never_change_the_meaning(tmp_path_factory, good, data):
    position = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[position] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flip") / "net.tw"
    path.write_bytes(changed)
    try:
        loaded = read_saved(path)
    except InputError:
        return
    # Dates and attributes of the archive are not covered by hashes, and mean nothing.
    assert loaded.plan == sample().plan
    np.testing.assert_array_equal(loaded.constants["w"], W)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_of_every_type(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(DTYPES[dtype])
    found = read_tensors(write_tensors({"a": array}))["a"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_tensor_headers_that_lie():
    good_bytes = write_tensors({"a": np.zeros(4, ml_dtypes.bfloat16)})
    length = struct.unpack("<Q", good_bytes[:8])[0]
    header = json.loads(good_bytes[8 : 8 + length])
    for change in ({"shape": [5]}, {"shape": [-4]}, {"data_offsets": [0, 1 << 40]}, {"dtype": "F8_E4M3"}):
        text = json.dumps({"a": header["a"] | change}).encode()
        with pytest.raises(InputError):
            read_tensors(struct.pack("<Q", len(text)) + text + good_bytes[8 + length :])
    with pytest.raises(InputError):
        read_tensors(struct.pack("<Q", 1 << 60) + good_bytes[8:])


def test_bools_from_a_file_are_zero_or_one():
    data = bytearray(write_tensors({"a": np.array([True, False])}))
    data[-2] = 7
    assert read_tensors(bytes(data))["a"].view(np.uint8).tolist() in ([1, 0], [1, 1])
