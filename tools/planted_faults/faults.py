"""Faults as data: where the text that a fault changes stands in a tree, and the tests that must catch it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilewright.ir import InputError

FAULTS = Path(__file__).with_name("faults.toml")


@dataclass(frozen=True)
class Fault:
    """A wrong change: `search`, which a tree has exactly once, becomes `replace`; `tests` must fail then."""

    name: str
    what: str
    search: str
    replace: str
    tests: tuple[str, ...]

    def file_in(self, tree: Path, folders: Sequence[str]) -> Path:
        """The Python file below `folders` that the fault changes; raises InputError unless there is one."""
        files = (f for folder in folders for f in sorted((tree / folder).rglob("*.py")))
        found = [f for f in files for _ in range(f.read_text(encoding="utf-8").count(self.search))]
        if len(found) != 1:
            raise InputError(f"expected the searched text of {self.name} once, got it {len(found)} times")
        return found[0]

    @contextmanager
    def planted(self, tree: Path, folders: Sequence[str]) -> Iterator[Path]:
        """The changed file, which is as it was after the context. Raises InputError for a wrong syntax."""
        file = self.file_in(tree, folders)
        right = file.read_text(encoding="utf-8")
        wrong = right.replace(self.search, self.replace)
        try:
            ast.parse(wrong)
        except SyntaxError as error:
            raise InputError(f"{self.name} makes {file.name} no Python: {error.msg}") from None
        try:
            _write(file, wrong)
            yield file
        finally:
            _write(file, right)


def _write(file: Path, text: str) -> None:
    """Write a source, and remove what Python compiled of it: two versions may have one size and one time."""
    file.write_text(text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def read_faults(file: Path = FAULTS) -> tuple[Fault, ...]:
    """The faults of a TOML file; raises InputError where one lacks a field or two have one name."""
    fields = set(Fault.__dataclass_fields__)
    faults = []
    try:
        items = tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"expected a TOML file with [[fault]], got: {error}", where=str(file)) from None
    for item in items:
        if set(item) != fields:
            raise InputError(
                f"expected a fault with {', '.join(sorted(fields))}, got {', '.join(sorted(item))}"
            )
        faults.append(Fault(**{**item, "tests": tuple(item["tests"])}))
    names = [fault.name for fault in faults]
    if len(set(names)) != len(names):
        raise InputError(f"expected different names of faults, got {', '.join(names)}")
    return tuple(faults)


def pytest_arguments(tree: Path, tests: str) -> tuple[str, ...]:
    """What pytest is given for an entry of `tests`; raises InputError where no one file has the name."""
    name, _, pattern = tests.partition(" ")
    found = sorted((tree / "tests").rglob(name))
    if len(found) != 1:
        raise InputError(f"expected one file {name} below tests, got {len(found)}")
    return (str(found[0].relative_to(tree)), *(("-k", pattern) if pattern else ()))
