"""Real processes that mpirun starts: what every rank says when one of them dies, hangs or raises."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.distributed.launcher import find_mpirun
from tilewright.ir import WorkError

SCRIPT = Path(__file__).parents[2] / "samples" / "distributed_ranks.py"
FAILED = 5
#: packages without their contents: a rank that imports the runtime alone starts in a fifth of the time
BARE = """
import runpy, sys, types
for name, folder in (("tilewright", None), ("tilewright.distributed", sys.argv[1])):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder] if folder else []
"""
RANK = BARE + "sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
#: starts ranks as `tilewright run --devices` does, and ends with their exit code
LAUNCHER = (
    BARE + "import tilewright.distributed.launcher as l; sys.exit(l.launch(int(sys.argv[2]), sys.argv[3:]))"
)
FOLDER = str(Path(find_mpirun.__code__.co_filename).parent)


def have_mpi() -> bool:
    try:
        find_mpirun()
    except WorkError:
        return False
    return True


pytestmark = pytest.mark.skipif(not have_mpi(), reason="no mpirun")


def start(scenario: str, *, ranks: int = 2, timeout_s: float = 30) -> subprocess.Popen[str]:
    rank = ["-c", RANK, FOLDER, str(SCRIPT), scenario, str(timeout_s)]
    command = [sys.executable, "-c", LAUNCHER, FOLDER, str(ranks), *rank]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(scenario: str, **options: float) -> tuple[int, list[str], list[int]]:
    """Exit code, the error lines of ranks, and the ranks' process numbers; their first sums must be right."""
    process = start(scenario, **options)  # type: ignore[arg-type]
    out, err = process.communicate(timeout=60)
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    ranks = int(options.get("ranks", 2))
    for rank in range(ranks):
        ring = [float((rank - 1) % ranks), float((rank + 1) % ranks)]
        assert f"rank {rank} sum {float(ranks)} ring {ring} pid" in out
    return process.returncode, lines, [int(pid) for pid in re.findall(r"pid (\d+)", out)]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def all_end(pids: list[int]) -> bool:
    end = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_a_killed_rank_ends_all() -> None:
    code, errors, pids = run("kill")
    assert code != 0
    assert len(errors) == 1
    assert re.search(r"rank 0.*(rank 1 is gone)", errors[0])
    assert len(pids) == 2
    assert all_end(pids)


def test_a_rank_that_hangs_is_named_after_the_timeout() -> None:
    code, errors, pids = run("stop", timeout_s=0.8)
    assert code == FAILED
    told = (
        "rank 0: launch 3 of kernel 'sum', all_reduce among ranks 0, 1: waited 0.8 s to receive from rank 1, "
    )
    assert any(told + f"whose process {max(pids)} is stopped" in e or told in e for e in errors)
    assert all_end(pids)


def test_a_rank_that_raises_tells_the_others() -> None:
    code, errors, pids = run("raise", ranks=3)
    assert code == FAILED
    assert "error: the third weight is missing" in errors
    others = [e for e in errors if "rank 1 failed: the third weight is missing" in e]
    assert sorted(e.split(":")[1] for e in others) == [" rank 0", " rank 2"]
    assert all_end(pids)


def test_ranks_end_with_the_process_that_started_them() -> None:
    process = start("hang")
    assert process.stdout is not None
    pids = [int(re.search(r"pid (\d+)", process.stdout.readline())[1]) for _ in range(2)]  # type: ignore[index]
    assert all(map(alive, pids))
    os.kill(process.pid, signal.SIGKILL)
    assert all_end(pids)
    process.communicate(timeout=20)
