"""Instruments: timing, printing, dumping and counting what passes do."""

from __future__ import annotations

import difflib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tilewright.ir.modules.printer import show
from tilewright.ir.nodes import Module, walk
from tilewright.passes.framework.context import Instrument, Step


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


@dataclass
class TimedRun:
    """Seconds one run of a pass took, passes run by it included, and those passes."""

    name: str
    seconds: float = 0.0
    children: list[TimedRun] = field(default_factory=list)


class Timing(Instrument):
    """Wall time of each pass as a tree; nested passes are children of the pass that runs them."""

    def __init__(self) -> None:
        self.roots: list[TimedRun] = []
        self._open: list[tuple[TimedRun, float]] = []

    def before(self, step: Step, module: Module) -> None:
        entry = TimedRun(str(step.configured))
        (self._open[-1][0].children if self._open else self.roots).append(entry)
        self._open.append((entry, time.perf_counter()))

    def after(self, step: Step, before: Module, after: Module) -> None:
        entry, start = self._open.pop()
        entry.seconds = time.perf_counter() - start

    def failed(self, step: Step, module: Module, error: BaseException) -> None:
        self.after(step, module, module)

    @property
    def seconds(self) -> float:
        """Total over the outermost passes."""
        return sum(r.seconds for r in self.roots)

    def report(self) -> str:
        """A table: milliseconds, share of the total, pass; nested passes are indented."""
        total = self.seconds
        lines = ["    time ms    share  pass"]
        for depth, entry in self._walk(self.roots, 0):
            share = 100 * entry.seconds / total if total else 0.0
            lines.append(f"{1e3 * entry.seconds:11.3f}  {share:5.1f} %  {'  ' * depth}{entry.name}")
        lines.append(f"{1e3 * total:11.3f}  100.0 %  total")
        return "\n".join(lines)

    def _walk(self, entries: Sequence[TimedRun], depth: int) -> Iterator[tuple[int, TimedRun]]:
        for entry in entries:
            yield depth, entry
            yield from self._walk(entry.children, depth + 1)


class PrintAfter(Instrument):
    """Prints the module after each pass whose name matches a glob pattern, if the pass changed it."""

    def __init__(
        self,
        *patterns: str,
        write: Callable[[str], None] = _to_stderr,
        only_changed: bool = True,
        locations: bool = True,
    ) -> None:
        self.patterns = patterns or ("*",)
        self.write, self.only_changed, self.locations = write, only_changed, locations

    def after(self, step: Step, before: Module, after: Module) -> None:
        if any(fnmatchcase(step.configured.name, p) for p in self.patterns):
            if after is not before or not self.only_changed:
                self.write(f"# after {step}\n{show(after, locations=self.locations)}")
            else:
                self.write(f"# after {step}: unchanged")


class PrintDiff(Instrument):
    """Prints what each pass changed as a unified diff of the text."""

    def __init__(self, *, write: Callable[[str], None] = _to_stderr, locations: bool = False) -> None:
        self.write, self.locations = write, locations

    def after(self, step: Step, before: Module, after: Module) -> None:
        if after is not before:
            self.write(diff(before, after, f"before {step}", f"after {step}", locations=self.locations))


def diff(a: Module, b: Module, name_a: str = "a", name_b: str = "b", *, locations: bool = False) -> str:
    """Unified diff of the texts of two modules; empty when they are equal."""
    before, after = (show(m, locations=locations).splitlines() for m in (a, b))
    return "\n".join(difflib.unified_diff(before, after, name_a, name_b, lineterm=""))


class DumpFolder(Instrument):
    """Writes `000-input.ir` and, after each pass that changed something, `NNN-<pass>.ir` into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []
        self._count = 0

    def before(self, step: Step, module: Module) -> None:
        if not self.files:
            self._write("input", module)

    def after(self, step: Step, before: Module, after: Module) -> None:
        self._count += 1
        if after is not before:
            self._write(step.configured.name, after)

    def _write(self, name: str, module: Module) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self._count:03}-{name}.ir"
        path.write_text(show(module), encoding="utf-8")
        self.files.append(path)


@dataclass(frozen=True)
class OpCounts:
    """Ops of a module by name before and after one pass."""

    step: Step
    before: Counter[str]
    after: Counter[str]

    def __str__(self) -> str:
        names = sorted(n for n in self.before | self.after if self.before[n] != self.after[n])
        changes = ", ".join(f"{n} {self.before[n]} -> {self.after[n]}" for n in names)
        totals = f"{self.step}: {self.before.total()} -> {self.after.total()} ops"
        return f"{totals} ({changes})" if changes else totals


class Statistics(Instrument):
    """Counts ops before and after each pass."""

    def __init__(self) -> None:
        self.counts: list[OpCounts] = []

    def after(self, step: Step, before: Module, after: Module) -> None:
        counted = op_counts(before)
        self.counts.append(OpCounts(step, counted, counted if after is before else op_counts(after)))

    def report(self) -> str:
        """One line per pass: total number of ops and the names whose number changed."""
        return "\n".join(map(str, self.counts))


def op_counts(module: Module) -> Counter[str]:
    """Count the ops of each name in a module, bodies included."""
    return Counter(op.name for f in module.funcs for op in walk(f.body))
