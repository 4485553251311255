"""Caches and saved files under damage, kills and concurrency: the right thing or a clear error."""

import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from python_processes import finish, start
from runtime_samples import BODIES, diamond, random_floats, source

from tilewright.codegen.builders.cache import BinaryCache
from tilewright.codegen.builders.compile_many import compile_cached
from tilewright.runtime.plan.container import SavedExecutable, read_saved, write_container

TEXTS = {name: source(name, "cuda") for name in BODIES}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache folder with three kernels, and the right binaries."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, {name: compile_cached(text, cache=BinaryCache(folder)) for name, text in TEXTS.items()}


@pytest.fixture
def folder(filled, tmp_path):
    return Path(shutil.copytree(filled[0], tmp_path / "cache"))


def save(path, **facts):
    write_container(path, SavedExecutable(diamond(), {"w": random_floats(0)}, {}, facts))


def entries(folder):
    return sorted(p for p in (folder / "binaries").iterdir() if p.suffix == ".bin")


def litter(folder):
    return [p.name for p in folder.rglob("*.part")]


def swapped(found):
    first, second, third = (p.read_bytes() for p in found)
    for p, content in zip(found, (second, third, first), strict=True):
        p.write_bytes(content)


def each(change):
    """A damage that happens to every entry."""

    def apply(found):
        for p in found:
            change(p)

    return apply


def flip(at):
    def change(p):
        content = bytearray(p.read_bytes())
        content[at] ^= 0x10
        p.write_bytes(content)

    return change


DAMAGES = {
    "empty": each(lambda p: p.write_bytes(b"")),
    "truncated": each(lambda p: p.write_bytes(p.read_bytes()[:-100])),
    "head only": each(lambda p: p.write_bytes(p.read_bytes()[:30])),
    "longer": each(lambda p: p.write_bytes(p.read_bytes() + b"more")),
    "bit of the head": each(flip(3)),
    "bit of the digest": each(flip(25)),
    "bit of the description": each(flip(70)),
    "bit of the code": each(flip(-500)),
    "foreign": each(lambda p: p.write_bytes(b"\x7fELF" + bytes(3000))),
    "of another kernel": swapped,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_compiled_anew(filled, folder, damage):
    DAMAGES[damage](entries(folder))
    for _ in range(2):
        cache = BinaryCache(folder)
        assert {name: compile_cached(text, cache=cache) for name, text in TEXTS.items()} == filled[1]
    assert [p.name for p in entries(folder)] == [p.name for p in entries(filled[0])]
    assert [p.read_bytes() for p in entries(folder)] == [p.read_bytes() for p in entries(filled[0])]
    assert not litter(folder)


def test_a_folder_in_place_of_an_entry_is_told_once(filled, folder):
    for p in entries(folder):
        p.unlink()
        p.mkdir()
    cache = BinaryCache(folder)
    with pytest.warns(RuntimeWarning, match="cannot be written") as caught:
        assert {name: compile_cached(text, cache=cache) for name, text in TEXTS.items()} == filled[1]
    assert len(caught) == 1
    assert not litter(folder)


def test_a_file_in_place_of_the_folder(filled, tmp_path):
    (tmp_path / "cache").write_text("mine")
    with pytest.warns(RuntimeWarning, match="TILEWRIGHT_CACHE_DIR"):
        found = compile_cached(TEXTS["scale"], cache=BinaryCache(tmp_path / "cache"))
    assert found == filled[1]["scale"]
    assert (tmp_path / "cache").read_text() == "mine"


def test_a_folder_that_vanishes(filled, folder, monkeypatch):
    cache = BinaryCache(folder, max_bytes=0)  # looks through the folder at every write
    monkeypatch.setattr(cache, "_evict", lambda: (shutil.rmtree(folder), BinaryCache._evict(cache)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("scale", "shift"):
            cache.put(name, b"payload")
    assert not folder.exists()


READ_ONLY = """
from tilewright.codegen.builders.nvrtc import compile_cuda
compile_cuda(TEXTS["scale"])  # loads NVRTC, which the user below may not
if os.geteuid() == 0:
    os.setuid(65534)  # nothing keeps the superuser from writing
cache = BinaryCache(sys.argv[1])
with pytest.warns(RuntimeWarning, match="cannot be written") as caught:
    for name, text in TEXTS.items():
        assert set(compile_cached(text, cache=cache).kernels) == {name}
assert len(caught) == 1
"""


def test_a_folder_and_entries_that_may_not_be_touched(filled):
    folder = Path(tempfile.mkdtemp())  # others may not look into tmp_path
    shutil.copytree(filled[0] / "binaries", folder / "binaries")
    inner = folder / "binaries"
    try:
        for p in entries(folder):
            p.chmod(0)
        inner.chmod(0o555)
        folder.chmod(0o755)
        finish(start(__name__, READ_ONLY, folder))
        assert len(list(inner.iterdir())) == len(TEXTS)
    finally:
        inner.chmod(0o755)
        shutil.rmtree(folder)


FULL = """
import resource
from tilewright.runtime.errors import InputError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
cache = BinaryCache(sys.argv[1])
with pytest.warns(RuntimeWarning, match="cannot be written"):
    assert set(compile_cached(TEXTS["scale"], cache=cache).kernels) == {"scale"}
with pytest.raises(InputError, match="cannot be written"):
    save(sys.argv[2])
"""


def test_a_disk_that_takes_no_more(tmp_path):
    path = tmp_path / "net.tw"
    save(path)
    before = path.read_bytes()
    finish(start(__name__, FULL, tmp_path / "cache", path))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["net.tw"]


COMPILE = "assert set(compile_cached(TEXTS['scale'], cache=BinaryCache(sys.argv[1])).kernels) == {'scale'}"


def test_processes_compile_one_kernel_at_once(filled, tmp_path):
    finish(*[start(__name__, COMPILE, tmp_path) for _ in range(3)])
    (entry,) = entries(tmp_path)
    assert entry.read_bytes() == (filled[0] / "binaries" / entry.name).read_bytes()
    assert not litter(tmp_path)


KILLED = """
import signal
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "cache":
    compile_cached(TEXTS["scale"], cache=BinaryCache(sys.argv[1]))
else:
    save(sys.argv[2])
"""


def age(folder, seconds):
    for p in folder.rglob("*"):
        os.utime(p, (time.time() - seconds,) * 2, follow_symlinks=False)


def test_a_writer_of_the_cache_that_is_killed(filled, tmp_path):
    finish(start(__name__, KILLED, tmp_path, "cache"), code=-9)
    assert len(litter(tmp_path)) == 1
    assert entries(tmp_path) == []
    assert compile_cached(TEXTS["scale"], cache=BinaryCache(tmp_path)) == filled[1]["scale"]
    assert len(litter(tmp_path)) == 1, "its writer might still live"
    age(tmp_path, 2 * 3600)
    assert compile_cached(TEXTS["shift"], cache=BinaryCache(tmp_path)) == filled[1]["shift"]
    assert not litter(tmp_path)
    assert len(entries(tmp_path)) == 2


def test_a_save_that_is_killed(tmp_path):
    path = tmp_path / "net.tw"
    save(path)
    before = path.read_bytes()
    (tmp_path / ".net.tw.mine.part").write_text("not made by a save")
    finish(start(__name__, KILLED, tmp_path, path), code=-9)
    assert path.read_bytes() == before
    assert len(litter(tmp_path)) == 2
    save(path)
    assert len(litter(tmp_path)) == 2, "its writer might still live"
    age(tmp_path, 2 * 3600)
    save(path)
    assert litter(tmp_path) == [".net.tw.mine.part"]
    assert read_saved(path).plan == diamond()


SAVE = """
for n in range(30):
    save(sys.argv[1], writer=int(sys.argv[2]), n=n)
    assert set(read_saved(sys.argv[1]).facts) == {"writer", "n"}
"""


def test_processes_save_to_one_path_at_once(tmp_path):
    path = tmp_path / "net.tw"
    finish(*[start(__name__, SAVE, path, n) for n in range(2)])
    assert read_saved(path).facts["n"] == 29
    assert [p.name for p in tmp_path.iterdir()] == ["net.tw"]
