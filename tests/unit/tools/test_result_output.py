"""What native code prints in a rank does not reach the results on standard output."""

import json
import os
import subprocess
import sys

RANK = """
import ctypes, os, sys
from tilewright.distributed.result_output import keep_output_for_results
print("before")
keep_output_for_results()
os.write(1, b"NCCL version 9\\n")
ctypes.CDLL(None).puts(b"said with C's buffer, written at exit")
keep_output_for_results()
print('{"é": 1}')
os.system("echo from a child")
"""


def run(**environment):
    clean = {k: v for k, v in os.environ.items() if "PMI" not in k and not k.startswith("OMPI")}
    return subprocess.run(
        [sys.executable, "-c", RANK],
        env={**clean, "PYTHONUTF8": "1", **environment},
        capture_output=True, encoding="utf-8", timeout=60, check=True,
    )  # fmt: skip


def test_a_rank_prints_its_results_alone():
    done = run(OMPI_COMM_WORLD_SIZE="2")
    first, result = done.stdout.splitlines()
    assert (first, json.loads(result)) == ("before", {"é": 1})
    for said in ("NCCL version 9", "written at exit", "from a child"):
        assert said in done.stderr


def test_other_processes_print_as_they_did():
    done = run()
    assert "NCCL version 9" in done.stdout
    assert "from a child" in done.stdout
    assert done.stderr == ""
