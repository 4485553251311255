"""The tutorial on writing a pass does what it says: its files are written, its code and commands run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial-pass.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
COMMANDS = {
    "irdump": [sys.executable, "-m", "tilewright.tools.irdump"],
    "tilewright": [sys.executable, "-m", "tilewright"],
    "python": [sys.executable],
}


def run(arguments: list[str], folder: Path) -> str:
    """Both outputs of a command; wherever it runs from, it finds this installation of the package."""
    done = subprocess.run(
        [*COMMANDS[arguments[0]], *arguments[1:]],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": "-p no:cacheprovider"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.stdout


def test_every_block_of_the_tutorial(tmp_path):
    kinds = []
    for kind, name, text in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
        kinds.append(kind)
        if name:
            (tmp_path / name).write_text(text, encoding="utf-8")
        elif kind == "python":
            (tmp_path / "block.py").write_text(text, encoding="utf-8")
            output = run(["python", "block.py"], tmp_path)
            assert "Traceback" not in output, output
            assert "merge-relus" in output  # the report it prints
        elif kind == "console":
            command, _, expected = text.partition("\n")
            arguments = shlex.split(command.removeprefix("$ "))
            output = run(arguments, tmp_path)
            assert expected.strip() in output, f"{command}\n{output}"
    console, running = ["console", "console", "console"], ["python", "python", "console"]
    assert kinds == ["python", "text", *console, *running, "python", "console", "toml"]
