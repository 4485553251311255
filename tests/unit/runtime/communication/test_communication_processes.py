"""What ranks know of each other's processes, and what is said where MPI is missing."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.distributed import launcher
from tilewright.ir import InputError, WorkError
from tilewright.runtime.communication.mpi import import_mpi
from tilewright.runtime.communication.processes import Process
from tilewright.runtime.errors import DeviceMissingError


def awaited(process: Process, state: str) -> bool:
    end = time.monotonic() + 10
    while process.state != state and time.monotonic() < end:
        time.sleep(0.01)
    return process.state == state


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_states_of_a_process() -> None:
    own = Process.this()
    assert own.state == "running"
    assert Process.from_text(own.to_text()) == own
    assert replace(own, machine="elsewhere/7").state == "elsewhere"
    assert "which is process" in replace(own, machine="elsewhere/7").describe()
    assert replace(own, began="1").state == "gone"  # another process of the same number
    with subprocess.Popen(["sleep", "60"]) as child:
        began = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        other = replace(own, pid=child.pid, began=began)
        assert other.state == "running"
        child.send_signal(signal.SIGSTOP)
        assert awaited(other, "stopped")
        assert other.describe() == f"whose process {child.pid} is stopped"
        child.kill()
        assert awaited(other, "gone")


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(DeviceMissingError, match=r"pip install 'tilewright\[mpi\]'"):
        import_mpi()


def test_without_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkError, match=r"expected mpirun beside this Python or on the PATH"):
        launcher.launch(2, ["-c", "pass"])
    with pytest.raises(InputError, match="--devices: expected 1 to 1024 devices, got 0"):
        launcher.launch(0, ["-c", "pass"])
