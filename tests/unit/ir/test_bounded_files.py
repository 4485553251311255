"""Input files: devices, pipes, sizes and archives that lie never fill memory and never block."""

import io
import os
import socket
import struct
import threading
import zipfile

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.builders.cache import BinaryCache
from tilewright.frontends.weights.files import load_params
from tilewright.ir import InputError, bounded_file, load_constants, npz_file, parse_file
from tilewright.ir.bounded_file import read_bounded, require_regular
from tilewright.ir.npz_file import NpzFile, read_npz
from tilewright.runtime.plan.container import read_saved
from tilewright.tools.cli import main
from tilewright.tools.irdump.command import main as irdump
from tilewright.tuning.database.database import TuningDatabase

NET = "tests/data/relay/mlp.relay"


@pytest.fixture(autouse=True)
def short_wait(monkeypatch):
    monkeypatch.setattr(bounded_file, "WRITER_S", 0.02)


def endless(path):
    path.symlink_to("/dev/zero")


def unwritten(path):
    os.mkfifo(path)


# -- reading with a bound --------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [0, 9, 10, 11])
def test_files_up_to_the_limit_are_read(tmp_path, size):
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    if size <= 10:
        assert read_bounded(path, 10, "text") == b"x" * size
    else:
        with pytest.raises(InputError, match=r"f: expected at most 10 bytes in the text, got 11$"):
            read_bounded(path, 10, "text")


def test_a_file_that_does_not_say_its_size_is_bounded():
    assert len(read_bounded("/proc/self/status", 1 << 20, "status")) > 100
    with pytest.raises(InputError, match="expected at most 10 bytes in the status, got more"):
        read_bounded("/proc/self/status", 10, "status")


@pytest.mark.parametrize("size", [0, 5, 10, 300_000])
def test_a_pipe_is_read_to_its_end_or_limit(tmp_path, size):
    path = tmp_path / "f"
    os.mkfifo(path)

    def write():
        try:
            with path.open("wb", buffering=0) as file:
                for begin in range(0, size, 100_000):
                    file.write(b"x" * min(100_000, size - begin))
        except BrokenPipeError:
            pass  # the reader had enough

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    if 0 < size <= 10:
        assert read_bounded(path, 10, "text") == b"x" * size
    else:
        said = (
            "nobody writes to this pipe" if size == 0 else "expected at most 10 bytes in the text, got more"
        )
        with pytest.raises(InputError, match=said):
            read_bounded(path, 10, "text")
    writer.join(10)
    assert not writer.is_alive()


def test_what_is_no_file_is_refused_unopened(tmp_path):
    endless(tmp_path / "zero")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "socket"))
    for name, said in (("zero", "got a device"), ("socket", "got a socket"), ("none", "No such file")):
        with pytest.raises(InputError, match=said):
            read_bounded(tmp_path / name, 10, "text")
        with pytest.raises(InputError, match=said):
            require_regular(tmp_path / name, "text")
    for bad, said in ((tmp_path, "Is a directory"), ("a\0b", "null byte"), ("x" * 5000, "name too long")):
        with pytest.raises(InputError, match=said):
            read_bounded(bad, 10, "text")


# -- every input -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [endless, unwritten])
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "BAD.relay"],
        ["run", "BAD.json"],
        ["run", "BAD.onnx"],
        ["run", "BAD.ir"],
        ["run", "BAD.tw"],
        ["report", "BAD.tw", "-o", "page.html"],
        ["run", NET, "--params", "BAD.npz"],
        ["run", NET, "--params", "BAD.params"],
        ["run", NET, "--params", "BAD.safetensors"],
        ["run", NET, "--target", "reference", "--input", "BAD.npz"],
        ["db", "export", "out", "--tuning-db", "BAD.sqlite"],
        ["db", "import", "BAD.jsonl"],
        ["streams", "BAD.json"],
        ["cluster", "plan", "--cluster", "BAD.toml", "--model", "gpt-3", "--training", "gpt-3"],
    ],
)
def test_commands_refuse_what_has_no_end(tmp_path, data_dir, monkeypatch, capsys, make, arguments):
    (tmp_path / "tests").symlink_to(data_dir.parent)
    monkeypatch.chdir(tmp_path)
    (bad,) = (a for a in arguments if a.startswith("BAD"))
    make(tmp_path / bad)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert bad in said
    assert "internal fault" not in said


@pytest.mark.parametrize("make", [endless, unwritten])
@pytest.mark.parametrize("suffix", [".relay", ".ir", ".onnx", ""])
def test_irdump_refuses_what_has_no_end(tmp_path, capsys, make, suffix):
    make(tmp_path / f"bad{suffix}")
    assert irdump([str(tmp_path / f"bad{suffix}")]) == 2
    assert f"bad{suffix}" in capsys.readouterr().err


@pytest.mark.parametrize("make", [endless, unwritten])
def test_python_refuses_what_has_no_end(tmp_path, make):
    bad = tmp_path / "bad.ir"
    make(bad)
    for read in (tw.load, load_constants, parse_file, load_params, read_npz, TuningDatabase.open):
        with pytest.raises(InputError, match="bad"):
            read(bad)
    with pytest.raises(InputError, match="no regular file"):
        read_saved(bad)


@pytest.mark.parametrize("make", [endless, unwritten])
def test_an_entry_of_the_cache_without_an_end_is_a_miss(tmp_path, make):
    cache = BinaryCache(tmp_path)
    cache.put("0" * 64, b"payload")
    path = cache._path("0" * 64)
    path.unlink()
    make(path)
    assert cache.get("0" * 64) is None
    cache.put("0" * 64, b"payload")
    assert cache.get("0" * 64) == b"payload"


# -- arrays that are larger than their file --------------------------------------------------------------
def saved(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


def member(path, name, data, **options):
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return path


def npy(shape, dtype="<f4", data=b""):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue() + data


def test_arrays_come_back(tmp_path):
    arrays = {
        "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "scalar": np.array(True),
        "empty": np.zeros((0, 3), np.float16),
    }
    found = read_npz(saved(tmp_path / "f.npz", **arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].flags.writeable


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy((2,)), r"'a' is float32\[2\] of 8 bytes, but 0 are stored"),
        (npy((2,), data=b"x" * 9), r"of 8 bytes, but 9 are stored"),
        (npy((1 << 60,)), "but 0 are stored"),
        (npy((2,), "|O", b"x" * 16), "expected numbers in 'a', got dtype object"),
        (npy((2,), "<U1", b"x" * 8), "expected numbers in 'a', got dtype <U1"),
        (b"no array", "'a' is no array"),
        (b"", "'a' is no array"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b" " * 70_000, "'a' is no array"),
        (b"\x93NUMPY\x09\x00" + b" " * 100, "'a' is no array"),
    ],
)
def test_members_that_lie_or_are_no_arrays(tmp_path, content, said):
    path = member(tmp_path / "f.npz", "a.npy", content)
    for read in (NpzFile, load_params):
        with pytest.raises(InputError, match=f"f.npz: expected an .npz file of plain arrays: .*{said}") as e:
            read(path)
        assert "pickle" not in str(e.value)


def test_files_that_are_no_archive(tmp_path):
    np.save(tmp_path / "f.npy", np.zeros(3))
    (tmp_path / "junk.npz").write_bytes(b"junk" * 100)
    (tmp_path / "half.npz").write_bytes(saved(tmp_path / "f.npz", a=np.zeros(99)).read_bytes()[:100])
    for name, said in (("f.npy", "a single array"), ("junk.npz", "no archive"), ("half.npz", "not a zip")):
        with pytest.raises(InputError, match=said) as e:
            NpzFile(tmp_path / name)
        assert "pickle" not in str(e.value)
    with pytest.raises(InputError, match=r"numpy\.savez"):
        load_params(tmp_path / "f.npy")


def test_two_members_of_one_name(tmp_path):
    path = member(saved(tmp_path / "f.npz", a=np.zeros(3)), "a", npy((1,), data=b"abcd"))
    with pytest.raises(InputError, match="two arrays are called 'a'"):
        NpzFile(path)


def test_other_compressions_and_many_members(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "f.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", npy((1,), data=b"abcd"))
    with pytest.raises(InputError, match="'a' is compressed in a way that NumPy does not write"):
        NpzFile(tmp_path / "f.npz")
    monkeypatch.setattr(npz_file, "MAX_MEMBERS", 2)
    with pytest.raises(InputError, match="at most 2 arrays, got 3"):
        NpzFile(saved(tmp_path / "g.npz", a=np.zeros(1), b=np.zeros(1), c=np.zeros(1)))


def test_damage_that_only_inflating_finds(tmp_path):
    path = saved(tmp_path / "f.npz", a=np.random.default_rng(0).normal(size=10_000))
    data = bytearray(path.read_bytes())
    data[40_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="'a"):
        read_npz(path)


@pytest.fixture
def inflating_is_an_error(monkeypatch):
    def inflate(self, names):
        raise AssertionError(names)

    monkeypatch.setattr(NpzFile, "read", inflate)


@pytest.mark.usefixtures("inflating_is_an_error")
def test_arrays_of_other_shapes_are_not_inflated(tmp_path, data_dir, capsys):
    net = str(data_dir / "relay" / "mlp.relay")
    path = str(saved(tmp_path / "f.npz", data=np.zeros((1 << 20, 2), np.float32)))
    assert main(["run", net, "--target", "reference", "--input", path]) == 2
    assert "'data' is float32[1048576, 2], not float32[1, 1, 28, 28]" in capsys.readouterr().err
    path = str(saved(tmp_path / "w.npz", fc1_weight=np.zeros((1 << 20, 2), np.float32)))
    with pytest.raises(InputError, match="no value is given for 'fc1_bias'"):
        tw.frontends.relay.load(net, params=path)
    everything = dict(tw.frontends.relay.load(net, params="random").constants)
    path = str(saved(tmp_path / "v.npz", **{**everything, "fc1_bias": np.zeros((1 << 20, 2), np.float32)}))
    with pytest.raises(InputError, match=r"'fc1_bias' is declared .* got float32\[1048576, 2\]"):
        tw.frontends.relay.load(net, params=path)


def test_an_archive_that_hides_its_size(tmp_path):
    """The directory at the end claims what the header says; the stream itself inflates to more."""
    path = member(tmp_path / "f.npz", "a.npy", npy((4,), data=bytes(1 << 20)))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, len(npy((4,))) + 16)
    path.write_bytes(data)
    with pytest.raises(InputError, match="'a"):
        read_npz(path)
