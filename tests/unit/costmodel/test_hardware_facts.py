"""A fact of the hardware has one definition, in `ir.hardware_facts`, and no file has a number of its own."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tilewright.ir import hardware_facts

ROOT = Path(__file__).parents[3]
FOLDERS = ("ir", "costmodel", "passes", "codegen", "runtime", "compiler", "tools")
NAMES = {name for name in vars(hardware_facts) if name.isupper()}


def defined(source: str) -> list[str]:
    """The facts that a file assigns at its top level, whatever underscores their names begin with."""
    return [
        name.id.lstrip("_")
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and name.id.lstrip("_") in NAMES
    ]


def test_each_fact_is_defined_once():
    found = Counter()
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update((name, str(file.relative_to(ROOT))) for name in defined(file.read_text()))
    assert found == {(name, "ir/hardware_facts.py"): 1 for name in NAMES}


@pytest.mark.parametrize(
    "source", ["WARP = 32", "_LINE_BYTES: int = 64", "BANKS = _BANKS = 16", "_M, _MMA_N = 16, 8"]
)
def test_a_second_definition_is_found(source: str):
    assert defined(source)
