"""Python processes that begin together, for tests of files that several processes share."""

import subprocess
import sys
from pathlib import Path


def start(module, script, *arguments):
    """A process that has the names of a test module and begins its script when it reads a line."""
    folders = [str(Path(file).parent) for file in (__file__, sys.modules[module].__file__)]
    head = f"import sys; sys.path[:0] = {folders!r}\n"
    head += f"from {module} import *\nprint('ready', flush=True); sys.stdin.readline()\n"
    command = [sys.executable, "-c", head + script, *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes)


def finish(*processes, code=0):
    """Let all begin at once and wait for them."""
    for p in processes:
        assert p.stdout.readline() == b"ready\n"
    for p in processes:
        p.stdin.write(b"\n")
        p.stdin.flush()
    for p in processes:
        _, errors = p.communicate(timeout=60)
        assert p.returncode == code, errors.decode()
