"""Output files: whole or not at all, with their modes, and nothing but regular files is ever replaced."""

import os
import stat
import threading
import time

import pytest

from tilewright.runtime.atomic_file import ABANDONED_S, atomic_file
from tilewright.tools.cli import main
from tilewright.tools.irdump.command import main as irdump

NET = "tests/data/relay/mlp.relay"


def write(path, data=b"new"):
    with atomic_file(path) as file:
        file.write(data)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_device_stays_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        device.symlink_to("/dev/null")
    write(device)
    assert device.is_char_device()
    assert irdump([NET, "-o", str(device), "--html", str(device)]) == 0
    assert device.is_char_device()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_device_is_an_error_that_names_it(tmp_path, capsys):
    (tmp_path / "full").symlink_to("/dev/full")
    assert irdump([NET, "-o", str(tmp_path / "full")]) == 2
    assert f"{tmp_path}/full: cannot write the output: No space left on device" in capsys.readouterr().err
    assert (tmp_path / "full").is_char_device()


@pytest.mark.parametrize("present", [True, False])
def test_links_are_followed_and_stay(tmp_path, present):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "file"
    if present:
        target.write_bytes(b"old")
    (tmp_path / "second").symlink_to("folder/file")
    link = tmp_path / "first"
    link.symlink_to("second")
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["file"]


def test_a_link_to_itself_is_an_error(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "loop")
    assert (tmp_path / "loop").is_symlink()


def test_the_reader_of_a_fifo_gets_everything(tmp_path):
    fifo, got = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    reader.start()
    write(fifo, b"x" * 200_000)
    reader.join(10)
    assert got == [b"x" * 200_000]
    assert fifo.is_fifo()


def test_a_fifo_gets_nothing_of_a_block_that_fails(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    # Opening it would wait for a reader for ever.
    with pytest.raises(TypeError), atomic_file(tmp_path / "fifo") as file:
        file.write(None)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_standard_output_goes_to_is_appended_to(name, capfd):
    print("before")
    assert irdump([NET, "-o", name]) == 0
    print("after")
    printed = capfd.readouterr().out
    assert irdump([NET]) == 0
    assert printed == f"before\n{capfd.readouterr().out}after\n"


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o755])
def test_modes_of_files_stay(tmp_path, bits):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(bits)
    with atomic_file(path) as file:
        file.write(b"new")
        assert all(mode(p) == bits for p in tmp_path.iterdir())
    assert (mode(path), path.read_bytes()) == (bits, b"new")


def test_new_files_get_the_mode_of_new_files(tmp_path, monkeypatch):
    (tmp_path / "usual").write_bytes(b"")
    monkeypatch.setattr(os, "umask", None)  # which would change it for all threads
    write(tmp_path / "file")
    assert mode(tmp_path / "file") == mode(tmp_path / "usual")


def test_a_write_protected_file_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o444)
    # The superuser may write everything.
    monkeypatch.setattr(os, "access", lambda p, how: bool(os.stat(p).st_mode & 0o200))
    with pytest.raises(PermissionError):
        write(path)
    assert path.read_bytes() == b"old"


def test_a_folder_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(IsADirectoryError):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "a\0b", "x" * 5000])
def test_long_and_odd_names(tmp_path, name):
    path = tmp_path / name
    if "\0" in name or len(name) > 255:
        with pytest.raises(OSError, match=r"NUL|name too long"):
            write(path)
    else:
        write(path)
        assert path.read_bytes() == b"new"


def test_what_killed_writers_left_is_removed(tmp_path):
    left, fresh = tmp_path / ".file.0123abcd.part", tmp_path / ".file.4567abcd.part"
    for path in (left, fresh):
        path.write_bytes(b"half")
    old = time.time() - ABANDONED_S - 60
    os.utime(left, (old, old))
    with atomic_file(tmp_path / "file") as slow:
        slow.write(b"slow")
        (own,) = {*tmp_path.iterdir()} - {left, fresh}
        os.utime(own, (old, old))
        write(tmp_path / "file")  # another writer, who lets this one live
        assert {p.name for p in tmp_path.iterdir()} == {fresh.name, own.name, "file"}
    assert sorted(p.name for p in tmp_path.iterdir()) == [fresh.name, "file"]
    assert (tmp_path / "file").read_bytes() == b"slow"


def test_compiling_keeps_links_and_modes(tmp_path):
    private = tmp_path / "private"
    private.write_bytes(b"old")
    private.chmod(0o600)
    (tmp_path / "link").symlink_to("private")
    assert main(["compile", NET, "--target", "opencl", "-o", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert mode(private) == 0o600
    assert private.stat().st_size > 1000


def test_outputs_of_a_run_keep_links(tmp_path):
    for name in ("out", "trace"):
        (tmp_path / f"{name}-link").symlink_to(name)
    given = ["--output", str(tmp_path / "out-link"), "--trace", str(tmp_path / "trace-link")]
    assert main(["run", NET, "--params", "random", "--target", "opencl", *given]) == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_symlink()) == ["out-link", "trace-link"]
    assert (tmp_path / "out").stat().st_size
    assert (tmp_path / "trace").stat().st_size
