"""Temporary folders: gone with their process, or with the next one made; those of live processes stay."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from tilewright.runtime.temporary_folder import TemporaryFolder
from tilewright.tools import cli

PREFIX = "tilewright-test-"
HOLDER = """
import os, signal, sys
from tilewright.runtime.temporary_folder import TemporaryFolder
folder = TemporaryFolder("tilewright-test-")
(folder.path / "weights").write_bytes(b"x")
print("made", flush=True)
sys.stdin.readline()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_closing_and_forgetting_remove_it(temporary):
    first, second = TemporaryFolder(PREFIX), TemporaryFolder(PREFIX)
    (first.path / "inner").mkdir()
    (first.path / "inner" / "file").write_bytes(b"x")
    assert names(temporary) == sorted([first.path.name, second.path.name])
    first.close()
    first.close()
    assert names(temporary) == [second.path.name]
    del second
    gc.collect()
    assert names(temporary) == []


def test_a_fork_that_ends_leaves_it(temporary):
    folder = TemporaryFolder(PREFIX)
    child = os.fork()
    if child == 0:
        folder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert names(temporary) == [folder.path.name]
    folder.close()


def test_a_killed_process_is_cleaned_up_after_and_live_ones_are_not(temporary):
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    killed, alive = (
        subprocess.Popen([sys.executable, "-c", HOLDER, how], **pipes) for how in ("killed", "ends")
    )
    for process in (killed, alive):
        assert process.stdout.readline() == b"made\n"
    killed.communicate(b"\n")
    assert killed.returncode == -signal.SIGKILL
    (temporary / f"{PREFIX}link").symlink_to(temporary / "elsewhere")
    (temporary / "other-test").mkdir()
    assert len(names(temporary)) == 4
    own = TemporaryFolder(PREFIX)
    left = names(temporary)
    assert len(left) == 4
    assert own.path.name in left
    alive.communicate(b"\n")
    assert alive.returncode == 0
    own.close()
    assert names(temporary) == ["other-test", f"{PREFIX}link"]


def test_many_at_once(temporary):
    threads = [
        threading.Thread(target=lambda: [TemporaryFolder(PREFIX).close() for _ in range(20)])
        for _ in range(4)
    ]
    kept = TemporaryFolder(PREFIX)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(temporary) == [kept.path.name]
    kept.close()


def test_no_room_is_an_error(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "absent"))
    with pytest.raises(FileNotFoundError):
        TemporaryFolder(PREFIX)


def test_sigterm_ends_a_command_as_an_error_would(temporary, monkeypatch, capsys):
    def action(arguments):
        folder = TemporaryFolder(PREFIX)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            folder.close()

    monkeypatch.setattr("tilewright.tools.commands.db.run_merge", action)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        cli.main(["db", "merge", "x"])
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert names(temporary) == []


def test_a_streamed_run_removes_its_weights_on_sigterm(temporary, data_dir):
    def end():
        while not list(temporary.glob("tilewright-stream-*/weights.store")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    net = str(data_dir / "relay" / "mlp.relay")
    with pytest.raises(SystemExit):
        cli.main(["run", net, "--target", "opencl", "--memory-cap", "1MiB", "--repeats", "1000000"])
    assert not list(temporary.glob("tilewright-stream-*"))
