"""`python -m tilewright.tools.planted_faults [FAULT ...]`: do the tests catch faults planted in the compiler?

The working tree (or the commit given) is copied to a temporary folder. For each fault of
`planted_faults.toml` its tests run there, first as the tree is and then with the fault. Exit codes: 0 every
fault is caught, 1 one is not, or a test fails without any fault, 2 bad arguments. Run it in the repository.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from tilewright.ir import InputError, WorkError
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.process_replay.snapshot import (
    export,
    link_package,
    package_folders,
    resolve,
    this_repository,
)

FAULTS = Path(__file__).with_name("planted_faults.toml")


@dataclass(frozen=True)
class PlantedFault:
    """A wrong change: `search`, which a tree has exactly once, becomes `replace`; `tests` must fail then."""

    name: str
    what: str
    search: str
    replace: str
    tests: tuple[str, ...]

    def file_in(self, tree: Path, folders: Sequence[str]) -> Path:
        """The Python file below `folders` that the fault changes; raises InputError unless there is one."""
        files = (f for folder in folders for f in sorted((tree / folder).rglob("*.py")))
        matches = [f for f in files for _ in range(f.read_text(encoding="utf-8").count(self.search))]
        if len(matches) != 1:
            raise InputError(f"expected the searched text of {self.name} once, got it {len(matches)} times")
        return matches[0]

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


def read_faults(file: Path = FAULTS) -> tuple[PlantedFault, ...]:
    """The faults of a TOML file; raises InputError where one lacks a field or two have one name."""
    fields = set(PlantedFault.__dataclass_fields__)
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
        faults.append(PlantedFault(**{**item, "tests": tuple(item["tests"])}))
    names = [fault.name for fault in faults]
    if len(set(names)) != len(names):
        raise InputError(f"expected different names of faults, got {', '.join(names)}")
    return tuple(faults)


def pytest_arguments(tree: Path, tests: str) -> tuple[str, ...]:
    """The arguments of pytest for an entry of `tests`; raises InputError where no one file has the name."""
    name, _, pattern = tests.partition(" ")
    matches = sorted((tree / "tests").rglob(name))
    if len(matches) != 1:
        raise InputError(f"expected one file {name} below tests, got {len(matches)}")
    return (str(matches[0].relative_to(tree)), *(("-k", pattern) if pattern else ()))


#: seconds after which tests count as hanging, which catches a fault as well
LONGEST_S = 600
_NO_TESTS = 5  # pytest's exit code


@dataclass(frozen=True)
class FaultOutcome:
    """The tests that fail with a fault, how many ran, and the seconds they took together."""

    fault: str
    failed: tuple[str, ...]
    ran: int
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests of every fault asked for and print which of them fail; the exit code."""
    p = argparse.ArgumentParser(prog="python -m tilewright.tools.planted_faults", description=__doc__)
    p.add_argument("faults", nargs="*", metavar="FAULT", help="only these (default all)")
    p.add_argument("--commit", help="plant in this commit (default: the working tree)")
    p.add_argument("--from", dest="source", metavar="FILE", type=Path, default=FAULTS, help="other faults")
    p.add_argument("--list", action="store_true", help="print the faults and plant none")
    p.add_argument("--json", metavar="FILE", help="write every outcome as JSON")
    a = p.parse_args(argv)
    try:
        faults = _chosen(a.source, a.faults)
        if a.list:
            print("\n".join(f"{f.name}: {f.what}" for f in faults))
            return 0
        with tempfile.TemporaryDirectory(prefix="planted-faults-") as scratch:
            outcomes = _plant_all(faults, a.commit, Path(scratch))
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except WorkError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    if a.json:
        write_atomically(a.json, json.dumps([asdict(o) for o in outcomes], indent=1))
    caught = sum(bool(o.failed) for o in outcomes)
    print(
        f"{caught} of {len(outcomes)} faults are caught, in {sum(o.seconds for o in outcomes):.0f} s of tests"
    )
    return 0 if caught == len(outcomes) else 1


def _chosen(source: Path, names: Sequence[str]) -> list[PlantedFault]:
    known = {fault.name: fault for fault in read_faults(source)}
    for name in names:
        if name not in known:
            raise InputError(f"expected a fault among {', '.join(known)}, got {name!r}")
    return [fault for name, fault in known.items() if not names or name in names]


def _plant_all(faults: Sequence[PlantedFault], commit: str | None, scratch: Path) -> list[FaultOutcome]:
    """Check the tests without a fault, then plant one after the other; prints each outcome as it comes."""
    repository = this_repository()
    tree = export(repository, resolve(repository, commit), scratch / "tree", more=("tests",))
    root = link_package(tree, scratch / "root")
    folders = tuple(package_folders(tree).values())
    arguments = {t: pytest_arguments(tree, t) for fault in faults for t in fault.tests}
    for fault in faults:
        fault.file_in(tree, folders)  # all texts are found before any test runs
    for tests, words in arguments.items():
        outcome = _run(tree, root, words)
        if outcome.failed:
            raise WorkError(f"{tests} fails without any fault: {outcome.failed[0]}")
    outcomes = []
    for fault in faults:
        with fault.planted(tree, folders) as file:
            runs = [_run(tree, root, arguments[t]) for t in fault.tests]
        failed = tuple(test for run in runs for test in run.failed)
        seconds = sum(run.seconds for run in runs)
        outcomes.append(FaultOutcome(fault.name, failed, sum(run.ran for run in runs), seconds))
        where = file.relative_to(tree)
        print(f"{fault.name} ({where}): {len(failed)} of {outcomes[-1].ran} tests fail, {seconds:.0f} s")
        print("".join(f"  {test}\n" for test in failed) or "  NOT CAUGHT\n", end="", flush=True)
    return outcomes


def _run(tree: Path, root: Path, words: Sequence[str]) -> FaultOutcome:
    """The outcome of one run of pytest in the tree; raises InputError where it selects no test."""
    results = tree / "results.xml"
    results.unlink(missing_ok=True)
    options = ("-q", "-p", "no:cacheprovider", "--junitxml", str(results))
    begin = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(root), "TILEWRIGHT_REPEATABLE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *words],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return FaultOutcome("", (f"{words[0]} does not end",), 1, LONGEST_S)
    seconds = time.perf_counter() - begin
    if done.returncode == _NO_TESTS or not results.exists():
        said = (done.stdout + done.stderr).strip().splitlines()
        if done.returncode == _NO_TESTS:
            raise InputError(f"expected tests of {' '.join(words)}, got none")
        return FaultOutcome("", (f"{words[0]}: {said[-1] if said else 'ended'}",), 1, seconds)
    cases = list(ElementTree.parse(results).iter("testcase"))
    wrong = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    names = tuple(f"{Path(words[0]).name}::{c.get('name')}" for c in wrong)
    return FaultOutcome("", names, len(cases), seconds)


if __name__ == "__main__":
    raise SystemExit(main())
