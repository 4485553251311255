"""Two records of one case -> which kernels, plan facts and IR texts differ, as data and as text."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.tools.arguments.printing import aligned
from tilewright.tools.process_replay.normalise import kernel_text, named_kernel_text, plan_lines, renamed_ir
from tilewright.tools.process_replay.recording import ReplayCase

CONTEXT = 3
#: lines of a changed text that `--diff` prints at most
LONGEST = 400


@dataclass(frozen=True)
class KernelChange:
    """A kernel that is not the same: its name on each side, empty where that side has none like it."""

    base: str
    head: str
    comments_only: bool
    diff: tuple[str, ...] = field(repr=False)

    def __str__(self) -> str:
        if not self.base:
            return f"{self.head}: only in HEAD"
        if not self.head:
            return f"{self.base}: only in BASE"
        named = self.base if self.base == self.head else f"{self.base} -> {self.head}"
        return f"{named}: comments differ" if self.comments_only else f"{named}: differs"


@dataclass(frozen=True)
class Comparison:
    """The differences in one case; `error` where one side could not compile it as the other could."""

    case: ReplayCase
    kernels: int
    changes: tuple[KernelChange, ...] = ()
    plan: tuple[str, ...] = ()
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""

    @property
    def same(self) -> bool:
        return not (self.changes or self.plan or self.texts or self.error)

    def short(self) -> str:
        """One cell of the table."""
        if self.error:
            return "error"
        parts = [f"{len(self.changes)} of {self.kernels} kernels"] if self.changes else []
        parts += ["plan"] if self.plan else []
        parts += [f"{level} IR" for level in self.texts]
        return ", ".join(parts) or "same"

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "network": self.case.network,
            "target": self.case.target,
            "precision": self.case.precision,
            "same": self.same,
            "kernels": self.kernels,
            "changes": [
                {"base": c.base, "head": c.head, "comments_only": c.comments_only, "diff": list(c.diff)}
                for c in self.changes
            ],
            "plan": list(self.plan),
            "texts": {k: list(v) for k, v in self.texts.items()},
            "error": self.error,
        }


def compare(
    case: ReplayCase,
    base: Mapping[str, Any],
    head: Mapping[str, Any],
    *,
    texts: bool = False,
    left_out: Sequence[str] = (),
) -> Comparison:
    """Everything that differs after renaming.

    texts: compare the printed IR too. left_out: fields of plans that are not compared.
    """
    if base["error"] or head["error"]:
        count = len((head["plan"] or base["plan"] or {"kernels": ()})["kernels"])
        if base["error"] == head["error"]:
            return Comparison(case, count)
        sides = (f"{name}: {r['error'] or 'compiles'}" for name, r in (("BASE", base), ("HEAD", head)))
        return Comparison(case, count, error="; ".join(sides))
    olds, news = _kernels(base["plan"]), _kernels(head["plan"])
    pairs, alone = _matched(olds, news)
    names = [f"k{i}" for i in range(len(olds))]
    old_names = dict(zip(olds, names, strict=True))
    new_names = {new: old_names[old] for old, new in pairs if old}
    new_names |= {new: f"new{i}" for i, new in enumerate(n for n in news if n not in new_names)}
    changes = tuple(_change(olds.get(old), news.get(new)) for old, new in alone)
    plan = _diff(plan_lines(base, old_names, left_out), plan_lines(head, new_names, left_out), "plan")
    levels = sorted(base["texts"].keys() | head["texts"].keys()) if texts else []
    pairs_of_texts = {k: [renamed_ir(r["texts"].get(k, "")) for r in (base, head)] for k in levels}
    different = {
        k: _diff(old.splitlines(), new.splitlines(), f"{k} IR")
        for k, (old, new) in pairs_of_texts.items()
        if old != new
    }
    return Comparison(case, len(news), changes, plan, different)


def _kernels(plan: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The kernels of a plan by name, in the order of their first launches."""
    known = {k["name"]: k for k in plan["kernels"]}
    order = dict.fromkeys([*(x["kernel"] for x in plan["launches"]), *known])
    return {name: known[name] for name in order}


def _matched(
    olds: Mapping[str, Mapping[str, Any]], news: Mapping[str, Mapping[str, Any]]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """All pairs of kernels that belong together, and those of them that differ or have no partner.

    First those of equal text, then those of equal name, then the others in order where as many are left.
    """
    equal = [(name, name) for name, kernel in olds.items() if news.get(name) == kernel]
    unchanged = {name for name, _ in equal}
    pool: dict[str, list[str]] = defaultdict(list)
    for name, kernel in news.items():
        if name not in unchanged:
            pool[kernel_text(kernel)].append(name)
    rest = []
    for name, kernel in olds.items():
        if name in unchanged:
            continue
        equals = pool[kernel_text(kernel)]
        if equals:
            equal.append((name, equals.pop(equals.index(name) if name in equals else 0)))
        else:
            rest.append(name)
    taken = {new for _, new in equal}
    left = [name for name in news if name not in taken]
    changed = [(name, name) for name in rest if name in left]
    rest, left = ([n for n in names if (n, n) not in changed] for names in (rest, left))
    if len(rest) == len(left):
        changed += zip(rest, left, strict=True)
    else:
        changed += [*((name, "") for name in rest), *(("", name) for name in left)]
    return [*equal, *(p for p in changed if p[0] and p[1])], changed


def _change(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> KernelChange:
    before, after = (str(k["name"]) if k else "" for k in (old, new))
    if old is None or new is None:
        return KernelChange(before, after, False, ())
    commented = kernel_text(old, comments=False) == kernel_text(new, comments=False)
    # Where few names changed, the text with names is the shorter diff: numbers shift behind a new variable.
    diffs = (
        _diff(text(old).splitlines(), text(new).splitlines(), after)
        for text in (kernel_text, named_kernel_text)
    )
    return KernelChange(before, after, commented, min(diffs, key=len))


def _diff(old: Sequence[str], new: Sequence[str], title: str) -> tuple[str, ...]:
    """A unified diff without the names of files; empty where both are equal."""
    if list(old) == list(new):
        return ()
    lines = difflib.unified_diff(old, new, f"BASE {title}", f"HEAD {title}", n=CONTEXT, lineterm="")
    return tuple(lines)


def findings(comparisons: Sequence[Comparison], *, diff: bool) -> str:
    """The differences, case by case, with their diffs where asked for."""
    out = []
    for c in comparisons:
        if c.same:
            continue
        out.append(f"{c.case}: {c.short()}")
        if c.error:
            out.append(f"  {c.error}")
        for change in c.changes:
            out.append(f"  {change}")
            if diff:
                out += _indented(change.diff)
        for title, lines in (("plan", c.plan), *c.texts.items()):
            if lines:
                added, removed = (sum(x.startswith(s) for x in lines[2:]) for s in ("+", "-"))
                out.append(f"  {title}: {removed} lines of BASE and {added} lines of HEAD differ")
                if diff:
                    out += _indented(lines)
    return "\n".join(out)


def _indented(lines: Sequence[str]) -> list[str]:
    shown = [f"    {line}" for line in lines[:LONGEST]]
    return shown + ([f"    ... {len(lines) - LONGEST} lines more"] if len(lines) > LONGEST else [])


def table(comparisons: Sequence[Comparison]) -> str:
    """One row for each network, one column for each target and precision."""
    columns = list(dict.fromkeys(f"{c.case.target} {c.case.precision}" for c in comparisons))
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for c in comparisons:
        rows[c.case.network][f"{c.case.target} {c.case.precision}"] = c.short()
    cells = [["network", *columns], *([n, *(row.get(c, "") for c in columns)] for n, row in rows.items())]
    return aligned(cells)
