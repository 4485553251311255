"""Containers with several plans: equal weights once, and every lie of a file is one clear error."""

import hashlib
import io
import json
import zipfile

import numpy as np
import pytest
from runtime_samples import diamond, random_floats

from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.container import (
    SavedBuckets,
    SavedExecutable,
    read_saved,
    write_buckets,
    write_container,
)

W, OTHER = random_floats(0), random_floats(1)


def bucket(weight: np.ndarray, name: str) -> SavedExecutable:
    plan = diamond("cuda", {"scale": b"\x7fELF one", "shift": b"\x7fELF two"}, "sm_90a")
    return SavedExecutable(plan, {"w": weight}, {"graph": f"module @{name} {{ }}"}, {"name": name})


def sample() -> SavedBuckets:
    return SavedBuckets((bucket(W, "a"), bucket(W.copy(), "b"), bucket(OTHER, "c")), {"target": "cuda"})


@pytest.fixture(scope="module")
def members(tmp_path_factory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("saved") / "net.tw"
    write_buckets(path, sample())
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path, members: dict[str, bytes], **manifest: object) -> None:
    """Write members with their right hashes, and entries of the manifest replaced."""
    members = dict(members)
    stated = {**json.loads(members.pop("manifest.json")), **manifest}
    stated["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(stated))
        for name, data in members.items():
            archive.writestr(name, data)


def refused(path) -> str:
    with pytest.raises(InputError) as caught:
        read_saved(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def test_round_trip(tmp_path):
    write_buckets(tmp_path / "net.tw", sample())
    loaded = read_saved(tmp_path / "net.tw")
    assert isinstance(loaded, SavedBuckets)
    assert loaded.facts == {"target": "cuda"}
    assert [b.facts["name"] for b in loaded.buckets] == ["a", "b", "c"]
    assert [b.texts for b in loaded.buckets] == [b.texts for b in sample().buckets]
    assert all(b.plan == sample().buckets[0].plan for b in loaded.buckets)
    for b, weight in zip(loaded.buckets, (W, W, OTHER), strict=True):
        np.testing.assert_array_equal(b.constants["w"], weight)
    assert np.shares_memory(loaded.buckets[0].constants["w"], loaded.buckets[1].constants["w"])
    write_buckets(tmp_path / "again.tw", loaded)
    assert (tmp_path / "again.tw").read_bytes() == (tmp_path / "net.tw").read_bytes()


def test_equal_weights_are_stored_once(members):
    assert len(members["weights.safetensors"]) < 2.5 * W.nbytes + 500
    assert json.loads(members["buckets/1/weights.json"]) == json.loads(members["buckets/0/weights.json"])


def test_repackaging_is_accepted(tmp_path, members):
    pack(tmp_path / "net.tw", members)
    assert isinstance(read_saved(tmp_path / "net.tw"), SavedBuckets)


def test_either_kind_is_read_as_what_it_is(tmp_path):
    write_container(tmp_path / "one.tw", bucket(W, "a"))
    assert isinstance(read_saved(tmp_path / "one.tw"), SavedExecutable)
    write_buckets(tmp_path / "all.tw", sample())
    assert isinstance(read_saved(tmp_path / "all.tw"), SavedBuckets)


@pytest.mark.parametrize(
    ("change", "manifest", "message"),
    [
        ({"buckets/1/weights.json": b'{"w": "w7"}'}, {}, "bucket 1: weights.json: there is no weight 'w7'"),
        ({"buckets/1/weights.json": b'{"w": 3}'}, {}, "there is no weight 3"),
        ({"buckets/1/weights.json": b'["w"]'}, {}, "expected an object, got list"),
        ({"buckets/1/weights.json": b"{}"}, {}, "bucket 1: expected 1 constants, got 0"),
        ({"buckets/2/weights.json": b'{"w": "w0"}'}, {}, "weight 'w1' belongs to no bucket"),
        ({"buckets/1/plan.json": None}, {}, "bucket 1: member 'plan.json' is missing"),
        ({"buckets/1/weights.json": None}, {}, "bucket 1: member 'weights.json' is missing"),
        ({"weights.safetensors": None}, {}, "member 'weights.safetensors' is missing"),
        ({"buckets/3/plan.json": b"{}"}, {}, "belongs to none of the 3 buckets"),
        ({"plan.json": b"{}"}, {}, "belongs to none of the 3 buckets"),
        ({"buckets/01/plan.json": b"{}"}, {}, "no part of a saved executable"),
        ({"buckets/1/../plan.json": b"{}"}, {}, "no part of a saved executable"),
        ({"buckets/1/manifest.json": b"{}"}, {}, "no part of a saved executable"),
        ({}, {"buckets": []}, "at least one"),
        ({}, {"buckets": [{}, {}, 3]}, "a list of objects"),
        ({}, {"buckets": {"0": {}}}, "a list of objects"),
        ({}, {"container_version": 3}, "expected container version 1 or 2, got 3"),
        ({}, {"container_version": 1}, "with one plan"),
        ({}, {"target": "opencl"}, "bucket 0: the manifest's target is not that of the plan"),
    ],
)
def test_a_file_that_lies_is_refused(tmp_path, members, change, manifest, message):
    changed = {name: data for name, data in {**members, **change}.items() if data is not None}
    pack(tmp_path / "net.tw", changed, **manifest)
    assert message in refused(tmp_path / "net.tw")


def test_a_file_of_one_plan_has_no_buckets(tmp_path, members):
    write_container(tmp_path / "one.tw", bucket(W, "a"))
    with zipfile.ZipFile(tmp_path / "one.tw") as archive:
        one = {name: archive.read(name) for name in archive.namelist()}
    pack(tmp_path / "net.tw", {**one, "buckets/0/plan.json": members["buckets/0/plan.json"]})
    assert "no part of a saved executable with one plan" in refused(tmp_path / "net.tw")
    pack(tmp_path / "net.tw", one, buckets=[{}])
    assert "with one plan" in refused(tmp_path / "net.tw")


def test_a_damaged_member_is_noticed(tmp_path, members):
    stated = json.loads(members["manifest.json"])
    with zipfile.ZipFile(tmp_path / "net.tw", "w") as archive:
        archive.writestr("manifest.json", json.dumps(stated))
        for name, data in members.items():
            if name != "manifest.json":
                archive.writestr(name, data.replace(b"module @b", b"module @x"))
    assert "does not have the hash" in refused(tmp_path / "net.tw")


def test_nothing_is_written_for_what_cannot_be_saved(tmp_path):
    with pytest.raises(InputError, match="at least one bucket"):
        write_buckets(tmp_path / "net.tw", SavedBuckets(()))
    bad = SavedExecutable(bucket(W, "a").plan, {})
    with pytest.raises(InputError, match="constant 'w' is missing"):
        write_buckets(tmp_path / "net.tw", SavedBuckets((bucket(W, "a"), bad)))
    assert not list(tmp_path.iterdir())
