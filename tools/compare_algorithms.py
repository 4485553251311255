"""Times the algorithms of convolutions, each in a network that is one convolution alone.

`python -m tilewright.tools.compare_algorithms [--jobs N] [--json FILE]`, on an NVIDIA GPU: a Markdown table
with microseconds of one replay of all kernels, with the parameters that the cost model chooses, and what
`conv_algorithm="auto"` takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, Module
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.arguments.parsing import whole
from tilewright.tools.arguments.printing import markdown_head, markdown_row

ALGORITHMS = ("direct", "winograd2", "winograd4", "fft")
AUTO = "auto"


@dataclass(frozen=True)
class TimedConvolution:
    """A float32 convolution with stride 1 and padding that keeps the image's extents.

    data: batch, channels, height, width; a kernel of `size` x `size` per filter and group.
    """

    data: tuple[int, int, int, int]
    filters: int
    size: int
    groups: int = 1

    @property
    def name(self) -> str:
        """Two cells of a table: `1x64x56x56`, `64, 3x3`."""
        kind = " depthwise" if self.groups > 1 else ""
        return f"{'x'.join(map(str, self.data))} | {self.filters}{kind}, {self.size}x{self.size}"

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The legal algorithms: Winograd's are for dense 3 x 3 kernels."""
        return ALGORITHMS if self.size == 3 and self.groups == 1 else ("direct", "fft")

    def module(self, seed: int = 0) -> Module:
        """The network, with a constant kernel, so that its transform is done at compile time."""
        n, _, h, w = self.data
        kernel = (self.filters, self.data[1] // self.groups, self.size, self.size)
        text = f"""module @convolution {{
          graph.func @main(%x: f32[{_extents(self.data)}]) -> f32[{_extents((n, self.filters, h, w))}] {{
            %w = graph.constant(name = "w") : f32[{_extents(kernel)}]
            %y = graph.conv2d(%x, %w, padding = {[self.size // 2] * 4}, groups = {self.groups})
              : f32[{_extents((n, self.filters, h, w))}]
            graph.return(%y)
          }}
        }}"""
        weights = np.random.default_rng(seed).standard_normal(kernel, np.float32)
        return replace(tw.parse(text), constants=Constants({"w": weights}))


CONVOLUTIONS = (
    TimedConvolution((1, 64, 56, 56), 64, 3),
    TimedConvolution((1, 128, 28, 28), 128, 3),
    TimedConvolution((1, 256, 14, 14), 256, 3),
    TimedConvolution((1, 512, 7, 7), 512, 3),
    TimedConvolution((32, 256, 14, 14), 256, 3),
    TimedConvolution((32, 64, 56, 56), 64, 3),
    TimedConvolution((1, 64, 224, 224), 64, 3),
    TimedConvolution((8, 48, 35, 35), 64, 5),
    TimedConvolution((1, 128, 56, 56), 128, 7),
    TimedConvolution((1, 96, 56, 56), 96, 7, groups=96),
    TimedConvolution((1, 256, 32, 32), 256, 31, groups=256),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Compile all, time them in turns, print the table."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--target", default="cuda", help="as in tilewright run (default cuda)")
    p.add_argument(
        "--jobs", type=whole(1, 256), default=1, metavar="N", help="processes that compile (default 1)"
    )
    p.add_argument("--only", type=int, nargs="+", metavar="I", help="rows of the table, from 0 (default all)")
    p.add_argument(
        "--rounds", type=whole(1, 1 << 10), default=5, help="rounds, all algorithms in each (default 5)"
    )
    p.add_argument("--replays", type=whole(1, 1 << 20), default=20, help="timed runs per round (default 20)")
    p.add_argument("--json", metavar="FILE", help="write all numbers, after every row")
    a = p.parse_args(argv)
    cases = [CONVOLUTIONS[i] for i in a.only] if a.only else list(CONVOLUTIONS)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        ways = [(case, way) for case in cases for way in (*case.algorithms, AUTO)]
        files = [str(Path(folder) / f"{number}.tw") for number in range(len(ways))]
        chosen = _compile_all(ways, files, a.target, a.jobs)
        known = dict(zip(ways, zip(files, chosen, strict=True), strict=True))
        print(*markdown_head(("data", "kernel", *ALGORITHMS, "`auto` takes")), sep="\n", flush=True)
        for case in cases:
            row = time_case(case, {w: known[case, w][0] for w in case.algorithms}, a.rounds, a.replays)
            rows.append({**row, "auto": known[case, AUTO][1]})
            times = (f"{row['us'][w]:.1f}" if w in row["us"] else "" for w in ALGORITHMS)
            print(markdown_row((case.name, *times, rows[-1]["auto"])), flush=True)
            if a.json:
                write_atomically(a.json, json.dumps(rows, indent=1))
    print(f"on {rows[0]['device']}" if rows else "nothing to time")
    return 0


def _compile_all(
    ways: Sequence[tuple[TimedConvolution, str]], files: Sequence[str], target: str, jobs: int
) -> list[str]:
    """The algorithm that each way comes to; the executables lie in the files."""
    arguments = (*zip(*ways, strict=True), files, [target] * len(ways))
    if jobs == 1:
        return list(map(_compile, *arguments))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_compile, *arguments))


def _compile(case: TimedConvolution, way: str, path: str, target: str) -> str:
    """Save one convolution by one algorithm, or by `auto`; returns the algorithm that it has."""
    algorithm: Any = way
    with tw.compile(case.module(), target=target, conv_algorithm=algorithm, workspace="any") as exe:
        exe.save(path)
        return str(exe.report()["convolutions"][0]["algorithm"])


def time_case(case: TimedConvolution, files: dict[str, str], rounds: int, replays: int) -> dict[str, Any]:
    """Median microseconds of one replay by algorithm, in turns; all read the same normal data."""
    x = np.random.default_rng(1).standard_normal(case.data, np.float32)
    with ExitStack() as stack:
        exes = {way: stack.enter_context(tw.load(path)) for way, path in files.items()}
        seconds: dict[str, list[float]] = {way: [] for way in exes}
        for _ in range(rounds):
            for way, exe in exes.items():
                seconds[way] += exe.time(x, repeats=replays)
        device = next(iter(exes.values())).device
        launches = {way: len(exe.plan.launches) for way, exe in exes.items()}
    us = {way: round(1e6 * float(np.median(s)), 2) for way, s in seconds.items()}
    return {"convolution": case.name, "us": us, "launches": launches, "device": device}


def _extents(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


if __name__ == "__main__":
    sys.exit(main())
