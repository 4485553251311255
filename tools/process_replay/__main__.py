"""`python -m tilewright.tools.process_replay BASE [HEAD]`: do two commits emit the same kernels and plans?

The networks are compiled by the source of each commit, down to emitted kernels and the execution plan;
nothing is built, so neither a GPU nor NVRTC is needed. Kernels and plans are compared after renaming. HEAD is
the working tree where it is left out. Exit codes: 0 all equal, 1 something differs or the work failed,
2 bad arguments. Run it in the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from tqdm import tqdm

from tilewright.ir import InputError, WorkError
from tilewright.ir.machine import cache_folder
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.arguments.parsing import whole
from tilewright.tools.process_replay.comparison import Comparison, compare, findings, table
from tilewright.tools.process_replay.recording import Case, Networks, Recording, record_all, recording
from tilewright.tools.process_replay.snapshot import Source, import_root, resolve, this_repository
from tilewright.tools.process_replay.times import compare_times, times_table

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
        found = recording(source, cases, networks, cache, scratch)
        _complete(found, repository, networks, scratch, name, a.jobs)
        recordings.append(found)
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
) -> list[Case]:
    """All compilations asked for, those of one network together; raises InputError for an unknown network."""
    known = networks.names()
    for name in names or ():
        if name not in known:
            raise InputError(f"expected a network among {', '.join(known)}, got {name!r}")
    wanted = [n for n in known if names is None or n in names]
    of_targets = {
        t: [p for p in precisions if p in OPENCL_PRECISIONS] if t.startswith("opencl") else precisions
        for t in targets
    }
    kinds = [(t, p) for t, own in of_targets.items() for p in own]
    if not kinds:
        raise InputError(f"expected a precision among {', '.join(OPENCL_PRECISIONS)} for OpenCL")
    return [Case(n, t, p) for n, (t, p) in product(wanted, kinds)]


def _root(repository: Path, source: Source, folder: Path) -> Path:
    folder.mkdir()
    return import_root(repository, source, folder)


def _complete(
    found: Recording, repository: Path, networks: Networks, scratch: Path, name: str, jobs: int
) -> None:
    """Compile what the records lack, with a bar where standard error is a terminal."""
    missing = found.missing()
    if not missing:
        return
    root = _root(repository, found.source, scratch / name)
    with tqdm(total=len(missing), desc=found.source.title, disable=not sys.stderr.isatty()) as bar:
        record_all(found, root, networks, scratch, jobs, lambda: bar.update() and None)


def _report(compared: Sequence[Comparison], base: Source, head: Source, *, diff: bool) -> str:
    same = sum(c.same for c in compared)
    last = f"{same} of {len(compared)} compilations are the same in {base.title} and {head.title}"
    return "\n\n".join(filter(None, (findings(compared, diff=diff), table(compared), last)))


if __name__ == "__main__":
    raise SystemExit(main())
