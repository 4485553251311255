"""What is installed is what the tree holds: every package folder listed, every requirement pinned."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]


def test_every_package_folder_is_listed():
    in_tree = {
        ".".join([package, *init.parent.relative_to(ROOT / folder).parts])
        for package, folder in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert in_tree == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_python_file_lies_in_a_package():
    stray = [
        str(file.relative_to(ROOT))
        for folder in FOLDERS.values()
        for file in (ROOT / folder).rglob("*.py")
        if not (file.parent / "__init__.py").exists()
    ]
    assert not stray


def test_every_requirement_is_constrained():
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[=<>\[;! ]", name)[0]).lower()

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constrained = {normal(line) for line in lines if not line.startswith("#")}
    extras = PROJECT["project"]["optional-dependencies"]
    names = ("cuda", "opencl", "dev", "mpi", "onnx", "report", "tvm")
    installed_by_make = [*PROJECT["project"]["dependencies"], *(r for n in names for r in extras[n])]
    assert f"tilewright[{','.join(names[3:])}]" in extras["dev"]
    assert {normal(name) for name in installed_by_make} - {"tilewright"} <= constrained
    assert all("==" in line for line in lines if not line.startswith("#"))


def test_every_data_file_is_packaged():
    kinds = {pattern.split("*")[-1] for pattern in PROJECT["tool"]["setuptools"]["package-data"]["*"]}
    left_out = [
        str(file.relative_to(ROOT))
        for folder in FOLDERS.values()
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and not {file.name, file.suffix} & (kinds | {".py", ".pyc"})
    ]
    assert not left_out


def test_the_readme_says_what_every_extra_is_for():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| extra |") :].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(PROJECT["project"]["optional-dependencies"])
