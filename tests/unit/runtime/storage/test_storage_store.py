"""Stores of tensors in steps: what is written is read, and what is damaged is refused."""

import errno
import os
import re
import resource
import signal
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors
from python_processes import finish, start
from storage_samples import BUFFERS, buffer_for, every_dtype, large_steps, same, specs, write

from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage.layout import (
    BLOCK_BYTES,
    PAGE_BYTES,
    TENSOR_ALIGNMENT,
    StepSpec,
    TensorSpec,
    plan_layout,
)
from tilewright.runtime.storage.reader import StepReader
from tilewright.runtime.storage.source import IoOptions
from tilewright.runtime.storage.store_writer import StoreWriter


def read_all(path, options=None):
    with StepReader(path, options) as reader:
        steps = {}
        for number, step in enumerate(reader.layout.steps):
            buffer = buffer_for(reader)
            reader.read(number, buffer)
            steps[step.name] = step.arrays(buffer.view)
        return steps


@pytest.mark.parametrize("direct", [True, False])
def test_every_element_type_comes_back(tmp_path, direct):
    steps = every_dtype()
    found = read_all(write(tmp_path / "a.safetensors", steps), IoOptions(direct=direct))
    assert list(found) == list(steps)
    assert all(same(found[name], steps[name]) for name in steps)


def test_large_steps_come_back_and_stay_readable_for_safetensors(tmp_path):
    steps = large_steps()
    path = write(tmp_path / "a.safetensors", steps)
    found = read_all(path, IoOptions(chunk_bytes=BLOCK_BYTES, depth=3))
    assert all(same(found[name], steps[name]) for name in steps)
    with safetensors.safe_open(path, "np") as file:
        for arrays in steps.values():
            assert all(np.array_equal(file.get_tensor(name), array) for name, array in arrays.items())


def test_steps_lie_in_pages_and_tensors_where_kernels_read_them(tmp_path):
    steps = every_dtype()
    planned = plan_layout(specs(steps))
    with StepReader(write(tmp_path / "a", steps)) as reader:
        end = reader.layout.steps[0].offset
        for step, plan in zip(reader.layout.steps, planned.steps, strict=True):
            assert (step.offset, step.offset % PAGE_BYTES, step.nbytes % PAGE_BYTES) == (end, 0, 0)
            assert (step.nbytes, step.starts, step.tensors) == (plan.nbytes, plan.starts, plan.tensors)
            assert all(start % TENSOR_ALIGNMENT == 0 for start in step.starts)
            end += step.nbytes
        assert end == os.path.getsize(tmp_path / "a")
        assert reader.layout.step_of["scalar"] == 2


def test_arrays_are_asked_for_one_by_one_and_let_go(tmp_path):
    steps = large_steps(2, 1000)
    alive = []

    class Lazy(dict):
        def __getitem__(self, name):
            alive.append(name)
            return np.full(1000, len(alive), np.uint8)

    with StoreWriter(tmp_path / "a", specs(steps)) as writer:
        for arrays in steps.values():
            writer.write_step(Lazy(dict.fromkeys(arrays)))
    assert alive == ["w0", "w1"]
    assert read_all(tmp_path / "a")["step1"]["w1"][0] == 2


def test_strided_and_swapped_arrays_are_written_as_they_read(tmp_path):
    array = np.arange(24, dtype=">i4").reshape(4, 6).T
    write(tmp_path / "a", {"s": {"x": array}})
    assert np.array_equal(read_all(tmp_path / "a")["s"]["x"], array)


def test_equal_tensors_give_equal_files(tmp_path):
    one, two = (write(tmp_path / name, every_dtype()) for name in "ab")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "'w0' is not both in step 'step0' and in its arrays"),
        ({"w0": np.zeros(9, np.uint8), "v": np.zeros(1)}, "'v' is not both"),
        ({"w0": np.zeros(8, np.uint8)}, r"expected uint8 \(9,\), got uint8 \(8,\)"),
        ({"w0": np.zeros(9, np.int8)}, r"expected uint8 \(9,\), got int8 \(9,\)"),
    ],
)
def test_wrong_arrays_are_refused_and_may_be_given_again(tmp_path, arrays, message):
    steps = large_steps(1, 9)
    with StoreWriter(tmp_path / "a", specs(steps)) as writer:
        with pytest.raises(InputError, match=message):
            writer.write_step(arrays)
        writer.write_step(steps["step0"])
        with pytest.raises(InputError, match="no step to write"):
            writer.write_step(steps["step0"])
    assert same(read_all(tmp_path / "a")["step0"], steps["step0"])


def test_a_step_that_failed_half_way_can_be_written_again(tmp_path):
    arrays = {"a": np.arange(5), "b": np.ones(3)}
    with StoreWriter(tmp_path / "a", specs({"s": arrays})) as writer:
        with pytest.raises(InputError):
            writer.write_step({"a": np.arange(5) + 7, "b": np.ones(4)})
        writer.write_step(arrays)
    assert same(read_all(tmp_path / "a")["s"], arrays)


def test_nothing_appears_unless_every_step_was_written(tmp_path):
    steps = large_steps(2, 100)
    (tmp_path / "a").write_bytes(b"old")
    with (
        pytest.raises(InputError, match="step 'step1' and what follows are missing"),
        StoreWriter(tmp_path / "a", specs(steps)) as writer,
    ):
        writer.write_step(steps["step0"])
    with pytest.raises(KeyError), StoreWriter(tmp_path / "a", specs(steps)):
        raise KeyError("made up")
    assert (os.listdir(tmp_path), (tmp_path / "a").read_bytes()) == (["a"], b"old")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "at least one step"),
        ([StepSpec("a", (TensorSpec("x", "int8", (1,)),))] * 2, "'x' occurs twice"),
        ([StepSpec("a", (TensorSpec("__padding__.0", "int8", (1,)),))], "keeps this name to itself"),
        ([StepSpec("a", (TensorSpec("__metadata__", "int8", (1,)),))], "keeps this name to itself"),
    ],
)
def test_steps_that_no_file_can_hold(tmp_path, steps, message):
    with pytest.raises(InputError, match=message):
        StoreWriter(tmp_path / "a", steps)


@pytest.mark.parametrize(("dtype", "shape"), [("float128", (1,)), ("int8", (-1,)), ("int8", (1,) * 65)])
def test_tensors_that_cannot_be(dtype, shape):
    with pytest.raises(InputError):
        TensorSpec("x", dtype, shape)


@pytest.fixture
def small_files():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.usefixtures("small_files")
def test_a_file_that_may_not_grow_is_refused_before_anything_is_written(tmp_path):
    steps = large_steps(1, 2 << 20)
    with (
        pytest.raises(StorageError, match=r"bytes cannot be written \(File too large\)"),
        StoreWriter(tmp_path / "a", specs(steps)),
    ):
        raise AssertionError("the writer must not be entered")
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    steps = large_steps(2)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with StoreWriter(tmp_path / "a", specs(steps)) as writer:
            writer.write_step(steps["step0"])
            resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, limits[1]))
            with pytest.raises(StorageError, match="cannot be written"):
                writer.write_step(steps["step1"])
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_and_a_missing_folder_are_named(tmp_path, monkeypatch):
    with (
        pytest.raises(StorageError, match="No such file"),
        StoreWriter(tmp_path / "no" / "a", specs(large_steps(1))),
    ):
        pass

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(StorageError, match=r"a: \d+ bytes cannot be written \(No space left on device\)"),
        StoreWriter(tmp_path / "a", specs(large_steps(1))),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_every_damaged_byte_of_the_header_is_found(tmp_path):
    path = write(tmp_path / "a", large_steps(2, 5000))
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0] + 8
    used = len(data[:length].rstrip())
    for at in [*range(0, used, 7), used, length - 1]:
        broken = bytearray(data)
        broken[at] ^= 1
        path.write_bytes(broken)
        with pytest.raises(InputError, match=str(path)):
            StepReader(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a store of tensors"),
        (b"\0" * 100, "expected a store of tensors"),
        (b"\xff" * 8192, "expected a store of tensors"),
        (
            struct.pack("<Q", 1 << 60) + b'{"__metadata__":{"format":"tilewright-store","version":"1",',
            "claims",
        ),
        (b" " * 8 + b'{"__metadata__":{"format":"tilewright-store","version":"2",', "another version"),
        (struct.pack("<Q", 4088) + b'{"__metadata__":{"format":"tilewright-store","version":"1",', "claims"),
    ],
)
def test_other_files_are_refused_at_once(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=message):
        StepReader(tmp_path / "a")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape":[9]', b'"shape":[8]'),
        (b'"shape":[9]', b'"shape":[-9]'),
        (b'"shape":[9]', b'"shape":[' + b"9" * 30 + b"]"),
        (b'"shape":[9]', b'"shape":[' + b"9999999999,9999999999," * 5 + b"0]"),
        (b'"U8"', b'"F9"'),
        (b'"steps":"[[\\"step0\\",1]', b'"steps":"[[\\"step0\\",7]'),
        (b'"steps":"[[\\"step0\\",1]', b'"steps":"[{}'),
        (b'"steps":"[[\\"step0\\",1]', b'"steps":"' + b"[" * 500),
        (b'"crc32":"', b'"crc32":"00'),
        (b'"crc32":"', b'"crc32":"zz'),
        (b'"block_bytes":', b'"blocks":'),
        (b'"w0":', b'"w\xff":'),
    ],
)
def test_headers_that_lie(tmp_path, old, new):
    path = write(tmp_path / "a", large_steps(1, 9))
    data = path.read_bytes()
    assert old in data
    header = bytearray(data[:4096].rstrip().replace(old, new, 1).ljust(4096))
    at = header.index(b'"header_crc32":"') + len(b'"header_crc32":"')
    header[at : at + 8] = b"00000000"
    header[at : at + 8] = f"{zlib.crc32(header):08x}".encode()  # a lie, not damage
    path.write_bytes(header + data[4096:])
    with pytest.raises(InputError, match=str(path)):
        StepReader(path)


def test_a_truncated_or_longer_file_is_refused(tmp_path):
    path = write(tmp_path / "a", large_steps(2, 9000))
    data = path.read_bytes()
    for content in (data[:-1], data[:-PAGE_BYTES], data[:PAGE_BYTES], data[:100], data + b"x"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"{path}: .*(expected|claims)"):
            StepReader(path)


def test_a_flipped_bit_names_file_step_and_place(tmp_path):
    path = write(tmp_path / "a", large_steps(2))
    with StepReader(path) as reader:
        step = reader.layout.steps[1]
    with open(path, "r+b") as file:
        file.seek(step.offset + BLOCK_BYTES + 12345)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    with StepReader(path) as reader:
        buffer = buffer_for(reader)
        assert reader.read(0, buffer).verified
        for _ in range(2):  # it was not read well, so it is compared again
            with pytest.raises(
                StorageError, match=rf"{path}: step 'step1': the bytes from {step.offset + BLOCK_BYTES} "
            ):
                reader.read(1, buffer)
    with StepReader(path, IoOptions(verify="never")) as reader:
        assert not reader.read(1, buffer).verified


def test_pipes_folders_and_missing_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=str(path)):
            StepReader(path)


def test_plain_buffers_are_whole_zeroed_pages():
    buffer = BUFFERS.allocate(5000)
    assert (buffer.nbytes, buffer.address % PAGE_BYTES, bytes(buffer.view)) == (8192, 0, bytes(8192))
    with pytest.raises(InputError, match="at least 1 byte"):
        BUFFERS.allocate(0)


def test_the_page_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[4] / "docs" / "storage.md"
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, page.name, "exec"), {})
    assert "layer 3 {'w3': (64, 64)}" in capsys.readouterr().out


DIES = """
with StoreWriter(sys.argv[1], specs(large_steps(2))) as writer:
    writer.write_step(large_steps(2)["step0"])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_the_old_file(tmp_path):
    path = write(tmp_path / "a", large_steps(1, 9))
    before = path.read_bytes()
    finish(start("storage_samples", "import os, signal\n" + DIES, path), code=-signal.SIGKILL)
    assert path.read_bytes() == before
