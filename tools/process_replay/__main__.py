"""`python -m tilewright.tools.process_replay BASE [HEAD]`: do two commits emit the same kernels and plans?

The networks are compiled by the source of each commit, down to emitted kernels and the execution plan;
nothing is built, so neither a GPU nor NVRTC is needed. Kernels and plans are compared after renaming. HEAD is
the working tree where it is left out. Exit codes: 0 all equal, 1 something differs or the work failed,
2 bad arguments. Run it in the repository.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tilewright.ir import InputError, WorkError
from tilewright.ir.machine import cache_folder
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.arguments.parsing import whole
from tilewright.tools.process_replay.comparison import Comparison, compare, findings, table
from tilewright.tools.process_replay.recording import (
    Child,
    Networks,
    Recording,
    ReplayCase,
    record_all,
    recording,
)
from tilewright.tools.process_replay.snapshot import CommitSource, import_root, resolve, this_repository

DATA = "tests/data/relay"
TARGETS = ("cuda:sm_90a", "opencl")
PRECISIONS = ("fp32", "tf32", "fp16")
#: a CPU has no tensor cores that TF32 or 16 bits were for
OPENCL_PRECISIONS = ("fp32",)


def main(argv: Sequence[str] | None = None) -> int:
    """Record, compare, print; the exit code."""
    a = _parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="process-replay-") as scratch:
            return _replay(a, Path(scratch))
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except WorkError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m tilewright.tools.process_replay", description=__doc__)
    p.add_argument("base", metavar="BASE", help="a commit, tag or branch")
    p.add_argument("head", metavar="HEAD", nargs="?", help="likewise (default: the working tree)")
    p.add_argument("--networks", nargs="+", metavar="NET", help="only these (default all)")
    p.add_argument("--targets", nargs="+", metavar="T", default=list(TARGETS), help="default %(default)s")
    p.add_argument(
        "--precisions", nargs="+", metavar="P", choices=PRECISIONS, default=list(PRECISIONS),
        help="of CUDA; OpenCL has fp32 only (default %(default)s)",
    )  # fmt: skip
    p.add_argument("--data", metavar="FOLDER", help=f"of the networks (default {DATA} of the repository)")
    p.add_argument(
        "--jobs", type=whole(1, 10**6), default=1, metavar="N", help="processes at once (default 1)"
    )
    p.add_argument("--diff", action="store_true", help="print unified diffs of kernels and plans")
    p.add_argument("--texts", action="store_true", help="compare the printed IR of the three levels too")
    p.add_argument(
        "--leave-out", nargs="+", default=[], metavar="FIELD", help="fields of plans that are not compared"
    )
    p.add_argument(
        "--times",
        type=whole(1, 10**6),
        metavar="ROUNDS",
        help="compare compile times instead, interleaved",
    )
    p.add_argument("--json", metavar="FILE", help="write what differs, or all times, as JSON")
    p.add_argument("--cache", metavar="FOLDER", help="of the records (default in Tilewright's cache folder)")
    return p


def _replay(a: argparse.Namespace, scratch: Path) -> int:
    repository = this_repository()
    networks = Networks(Path(a.data) if a.data else repository / DATA)
    cases = _cases(networks, a.networks, a.targets, a.precisions)
    base, head = resolve(repository, a.base), resolve(repository, a.head)
    cache = Path(a.cache) if a.cache else cache_folder() / "process-replay"
    if a.times:
        roots = tuple(_root(repository, s, scratch / n) for n, s in (("base", base), ("head", head)))
        times = compare_times((base, head), (roots[0], roots[1]), cases, networks, scratch, a.times)
        print(times_table(times, base, head, a.times))
        if a.json:
            write_atomically(a.json, json.dumps([t.facts() for t in times], indent=1))
        return 0
    recordings = []
    for name, source in (("base", base), ("head", head)):
        records = recording(source, cases, networks, cache, scratch)
        _complete(records, repository, networks, scratch, name, a.jobs)
        recordings.append(records)
    old, new = recordings
    compared = [
        compare(c, old.record(c), new.record(c), texts=a.texts, left_out=tuple(a.leave_out)) for c in cases
    ]
    print(_report(compared, base, head, diff=a.diff))
    if a.json:
        facts = {"base": base.title, "head": head.title, "cases": [c.facts() for c in compared]}
        write_atomically(a.json, json.dumps(facts, indent=1))
    return 0 if all(c.same for c in compared) else 1


def _cases(
    networks: Networks, names: Sequence[str] | None, targets: Sequence[str], precisions: Sequence[str]
) -> list[ReplayCase]:
    """All compilations asked for, those of one network together; raises InputError for an unknown network."""
    known = networks.names()
    for name in names or ():
        if name not in known:
            raise InputError(f"expected a network among {', '.join(known)}, got {name!r}")
    selected = [n for n in known if names is None or n in names]
    of_targets = {
        t: [p for p in precisions if p in OPENCL_PRECISIONS] if t.startswith("opencl") else precisions
        for t in targets
    }
    kinds = [(t, p) for t, own in of_targets.items() for p in own]
    if not kinds:
        raise InputError(f"expected a precision among {', '.join(OPENCL_PRECISIONS)} for OpenCL")
    return [ReplayCase(n, t, p) for n, (t, p) in product(selected, kinds)]


def _root(repository: Path, source: CommitSource, folder: Path) -> Path:
    folder.mkdir()
    return import_root(repository, source, folder)


def _complete(
    records: Recording, repository: Path, networks: Networks, scratch: Path, name: str, jobs: int
) -> None:
    """Compile what the records lack, with a bar where standard error is a terminal."""
    missing = records.missing()
    if not missing:
        return
    root = _root(repository, records.source, scratch / name)
    with tqdm(total=len(missing), desc=records.source.title, disable=not sys.stderr.isatty()) as bar:
        record_all(records, root, networks, scratch, jobs, lambda: bar.update() and None)


def _report(compared: Sequence[Comparison], base: CommitSource, head: CommitSource, *, diff: bool) -> str:
    same = sum(c.same for c in compared)
    last = f"{same} of {len(compared)} compilations are the same in {base.title} and {head.title}"
    return "\n\n".join(filter(None, (findings(compared, diff=diff), table(compared), last)))


@dataclass(frozen=True)
class CompileTimes:
    """Seconds of processor time of `tw.compile` in each round, for one case."""

    case: ReplayCase
    base: tuple[float, ...]
    head: tuple[float, ...]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        c = self.case
        named = {"network": c.network, "target": c.target, "precision": c.precision}
        return named | {"base_cpu_s": list(self.base), "head_cpu_s": list(self.head)}


def compare_times(
    sources: tuple[CommitSource, CommitSource],
    roots: tuple[Path, Path],
    cases: Sequence[ReplayCase],
    networks: Networks,
    scratch: Path,
    rounds: int,
) -> list[CompileTimes]:
    """Compile every case `rounds` times with each source, whose turns are swapped every round.

    Each network has a fresh process in each round. Raises WorkError where a case does not compile.
    """
    seconds: dict[tuple[ReplayCase, int], list[float]] = {(c, side): [] for c in cases for side in (0, 1)}
    groups = [list(g) for _, g in groupby(cases, key=lambda c: c.network)]
    work = [(group, number) for group in groups for number in range(rounds)]
    for group, number in tqdm(work, desc="rounds", disable=not sys.stderr.isatty()):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            with Child(roots[side], sources[side].title, scratch) as child:
                for case in group:
                    answer = child.ask(networks.request(case, ""))
                    if answer["error"]:
                        raise WorkError(f"{sources[side].title} {case}: {answer['error']}")
                    seconds[case, side].append(float(answer["cpu_seconds"]))
    return [CompileTimes(c, tuple(seconds[c, 0]), tuple(seconds[c, 1])) for c in cases]


def times_table(times: Sequence[CompileTimes], base: CommitSource, head: CommitSource, rounds: int) -> str:
    """Medians and the ratio of each case, and the ratio of the sums with its spread over the rounds."""
    lines = [f"{'case':40s} {'BASE s':>8s} {'HEAD s':>8s} {'ratio':>7s}  rounds from to"]
    lines += [_line(str(t.case), t.base, t.head) for t in times]
    sums = [
        [sum(column) for column in zip(*(getattr(t, side) for t in times), strict=True)]
        for side in ("base", "head")
    ]
    lines.append(_line("all", sums[0], sums[1]))
    ratio = statistics.median(sums[1]) / statistics.median(sums[0])
    lines += ["", f"{head.title} takes {ratio:.3f} of the processor time of {base.title} ({rounds} rounds)"]
    return "\n".join(lines)


def _line(title: str, base: Sequence[float], head: Sequence[float]) -> str:
    old, new = statistics.median(base), statistics.median(head)
    ratios = [h / b for b, h in zip(base, head, strict=True)]
    spread = f"{min(ratios):.3f} {max(ratios):.3f}"
    return f"{title:40s} {old:8.2f} {new:8.2f} {new / old:7.3f}  {spread}"


if __name__ == "__main__":
    raise SystemExit(main())
