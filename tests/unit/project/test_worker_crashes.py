"""A test that kills its worker is named, and the tests after it are run, with the options of `make test`."""

import os
import re
import subprocess
import sys
from pathlib import Path

MAKEFILE = Path(__file__).parents[3] / "Makefile"
# The tests of the worker that lives take time: it must not be stealing tests from the other one in the
# moment in which that one dies, which pytest-xdist does not survive.
PLANTED = """
import ctypes
import time
import pytest

@pytest.mark.parametrize("number", range(6))
def test_planted(number):
    if number == FATAL:
        ctypes.string_at(0)
    time.sleep(0.4)
"""


def test_a_crash_is_named_and_the_rest_runs(tmp_path):
    options = re.search(r"-m pytest (-q -n 2 .*)", MAKEFILE.read_text())[1].split()
    for name, fatal in (("test_first.py", 1), ("test_second.py", 9)):
        (tmp_path / name).write_text(PLANTED.replace("FATAL", str(fatal)))
    (tmp_path / "pytest.ini").touch()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    summary = re.findall(r"^FAILED (\S+) - worker '\w+' crashed while running", done.stdout, re.MULTILINE)
    assert summary == ["test_first.py::test_planted[1]"]
    assert "1 failed, 11 passed" in done.stdout
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert done.returncode == 1
