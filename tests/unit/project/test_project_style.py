"""House rules that ruff and mypy cannot check: sizes of functions, names, leftovers, paths."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("codegen", "compiler", "costmodel", "frontends", "ir", "passes", "runtime", "tools")
TEXT_SUFFIXES = {".py", ".lark", ".toml", ".md", ".ir", ".h", ".html", ".css", ".js", ".yml", ".txt", ""}
NOT_OURS = {"build", "dist", "data"}
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"utils.py", "helpers.py", "base.py", "util.py", "helper.py", "common.py", "misc.py"}
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:work|home|Users|tmp|root|mnt)/[\w.]")


def text_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in NOT_OURS and not name.endswith((".egg-info", "__pycache__")) and name[0] != "."
        ]
        yield from (
            Path(folder, name) for name in names if Path(name).suffix in TEXT_SUFFIXES and name != ".git"
        )
    yield ROOT / ".ci" / "run"


def python_files(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_below_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = first.end_lineno + 1 if documented else first.lineno
    return function.end_lineno - start + 1


def long_functions(source: str, path: str) -> list[tuple[str, int]]:
    sizes = [(f.name, lines_below_docstring(f)) for f in functions(ast.parse(source, path))]
    return [(name, lines) for name, lines in sizes if lines > MAX_FUNCTION_LINES]


def matches(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name(file)}:{number}: {line.strip()}"
        for file in text_files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_functions_are_short():
    found = {name(file): long_functions(file.read_text(), name(file)) for file in python_files(*PACKAGES)}
    assert not {file: names for file, names in found.items() if names}


def test_long_function_is_found():
    body = "    pass\n" * MAX_FUNCTION_LINES
    assert long_functions(f'def f():\n    """Doc."""\n{body}', "f.py") == []
    assert long_functions(f"def f():\n{body}    pass\n", "f.py") == [("f", MAX_FUNCTION_LINES + 1)]


def test_file_names_say_what_is_inside():
    assert not [name(file) for file in python_files(*PACKAGES, "tests") if file.name in VAGUE_NAMES]


def test_nothing_is_left_over():
    assert not matches(LEFTOVER)


def test_no_path_of_one_machine_is_written_down():
    assert not matches(MACHINE_PATH)
    assert MACHINE_PATH.search("see /" + "home/me/net.ir")
