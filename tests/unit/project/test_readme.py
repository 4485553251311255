"""The README's Python blocks run as written."""

import os
import re
from pathlib import Path

import numpy as np

from tilewright.passes import scoped_registry

README = Path(__file__).resolve().parents[3] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_runs_and_agrees(tmp_path, monkeypatch):
    monkeypatch.chdir(README.parent)
    code = blocks()[0].replace('"resnet18.tw"', repr(str(tmp_path / "resnet18.tw")))
    space: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), space)
    y, reference = space["y"], space["reference"]
    assert np.linalg.norm(y - reference) < 1e-4 * np.linalg.norm(reference)
    assert os.path.exists(tmp_path / "resnet18.tw")


def test_the_pass_registers():
    with scoped_registry():
        space: dict[str, object] = {"__name__": "readme_pass"}
        exec(compile(blocks()[1], "README.md", "exec"), space)
        assert space["drop_double_relu"].name == "drop-double-relu"
