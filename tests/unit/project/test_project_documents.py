"""The map of the code in docs/architecture.md and the words of docs/glossary.md name what is there."""

import ast
import re
from pathlib import Path

import pytest

from tilewright.ir.opdef import op_def

ROOT = Path(__file__).parents[3]
TOP = ("codegen", "compiler", "costmodel", "frontends", "ir", "passes", "runtime", "tools")
#: folders whose passes are sorted into rooms, each of which the map names
SORTED = ("passes/graph", "passes/tensor")
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
#: `path : name`, the name with a dot for what a class defines
PLACES = sorted(set(re.findall(r"`([\w/]+\.py) : ([\w.]+)`", MAP + GLOSSARY)))


def names_of(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Everything that statements define, with the statements inside of classes."""
    names: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = node.body
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = []
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id: [] for t in targets if isinstance(t, ast.Name)}
    return names


def defines(path: str, name: str) -> bool:
    """Whether the file defines `name`: a function, a class, a constant, or a member of a class."""
    file = ROOT / path
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    for part in name.split("."):
        names = names_of(body)
        if part not in names:
            return False
        body = names[part]
    return True


@pytest.mark.parametrize(
    ("path", "name", "there"),
    [
        ("ir/expr.py", "binary", True),
        ("ir/expr.py", "OPERATORS", True),
        ("ir/expr.py", "Sym.__str__", True),
        ("ir/expr.py", "Sym.binary", False),
        ("ir/expr.py", "np", False),
        ("ir/no_such_file.py", "binary", False),
    ],
)
def test_a_definition_is_found(path, name, there):
    assert defines(path, name) is there


def test_every_place_that_the_map_and_the_glossary_name_is_there():
    assert len(PLACES) > 40
    assert not [f"{path} : {name}" for path, name in PLACES if not defines(path, name)]


def test_every_step_of_the_path_names_its_place():
    steps = re.findall(r"^\| (\d+) \| (.*?) \|", MAP, re.M)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) >= 30
    assert not [number for number, place in steps if not re.search(r"`[\w/]+\.py : [\w.]+`", place)]


def test_the_map_names_every_folder_and_no_other():
    named = re.findall(r"^\| `([\w/]+)/` \|", MAP, re.M)
    folders = {f for top in (*TOP, *SORTED) for f in (ROOT / top, *(ROOT / top).iterdir())}
    folders = {f for f in folders if any(f.glob("*.py"))}
    assert sorted(named) == sorted(str(f.relative_to(ROOT)) for f in folders)


def test_ops_and_paths_of_the_map_and_the_glossary_are_there():
    text = MAP + GLOSSARY
    for name in re.findall(r"`((?:graph|tensor|thread|plan)\.[a-z]\w*)`", text):
        op_def(name)
    paths = re.findall(r"`((?:" + "|".join((*TOP, "docs", "tests")) + r")/[\w/.]*)`", text)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_words_of_the_glossary_stand_once_and_in_order():
    for section in GLOSSARY.split("\n## ")[1:]:
        words = re.findall(r"^\| \*\*(.+?)\*\*", section, re.M)
        assert words == sorted(words, key=str.lower)
    every = re.findall(r"^\| \*\*(.+?)\*\*", GLOSSARY, re.M)
    assert len(every) > 60
    assert len(every) == len({w.lower() for w in every})


def test_python_files_that_pages_name_are_there():
    files = {str(f.relative_to(ROOT)) for top in (*TOP, "tests") for f in (ROOT / top).rglob("*.py")}
    names = {path.rsplit("/", 1)[-1] for path in files}
    pages = [
        ROOT / "README.md",
        *(p for p in sorted((ROOT / "docs").glob("*.md")) if "tutorial" not in p.name),
    ]
    named = [(p.name, path) for p in pages for path in re.findall(r"`([\w/]+\.py)`", p.read_text("utf-8"))]
    assert len(named) > 20
    assert not [(page, path) for page, path in named if path not in (files if "/" in path else names)]
