"""`tilewright partition`: how one layer's rows may be cut over devices, the best cut, whole networks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

from tqdm import tqdm

from tilewright.costmodel.partition.exact import least_objective
from tilewright.costmodel.partition.intervals import (
    IntervalSpace,
    count_partitions,
    interval_space,
    limited,
    threshold_sizes,
)
from tilewright.costmodel.partition.naive import naive_pieces, output_extent
from tilewright.costmodel.partition.objective import LayerObjective, Weights
from tilewright.costmodel.partition.pruned import pruned_search
from tilewright.ir import InputError
from tilewright.ir.windows import Interval


def run_count(a: argparse.Namespace) -> None:
    """Count the partitions and print their number."""
    count = count_partitions(_space(a, _speeds(a)))
    if a.json:
        print(json.dumps({"count": count}))
        return
    overlap = "without" if a.no_overlap else "with"
    print(f"{count} partitions of {a.output} rows over {a.devices} devices, {overlap} overlap")


def run_search(a: argparse.Namespace) -> None:
    """Search and print the intervals and their objective."""
    speeds = _speeds(a)
    space = _space(a, speeds)
    slowest, fetched, cropped, imbalance = _numbers(a.weights, "--weights", 4)
    weights = Weights(slowest, fetched, cropped, imbalance, corrected=a.corrected)
    objective = LayerObjective(speeds, _required(a, speeds), weights)
    evaluated = ""
    if a.method == "pruned":
        with _search_bar() as progress:
            pruned = pruned_search(space, objective, progress)
        intervals, value = pruned.intervals, pruned.value
        evaluated = f", {pruned.evaluated} partitions evaluated"
    else:
        intervals, value = least_objective(space, objective)
    if a.json:
        print(json.dumps({"intervals": [list(interval) for interval in intervals], "objective": value}))
        return
    print(f"{a.method} search over {a.devices} devices: objective {value:.6g}{evaluated}")
    for device, (start, end) in enumerate(intervals):
        print(f"  device {device}: rows [{start}, {end}), {end - start} of {a.output}")


@contextmanager
def _search_bar() -> Iterator[Callable[[float, int], None]]:
    """A bar on stderr, where that is a terminal: the share that is done, and partitions evaluated."""
    with tqdm(
        total=100.0,
        desc="searching",
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}",
        file=sys.stderr,
        leave=False,
        disable=not sys.stderr.isatty(),
    ) as bar:

        def advance(share: float, evaluated: int) -> None:
            bar.set_postfix_str(f"{evaluated} evaluated", refresh=False)
            bar.n = round(100.0 * share, 2)
            bar.refresh()

        yield advance


def _space(a: argparse.Namespace, speeds: Sequence[float]) -> IntervalSpace:
    threshold = _fraction(a.threshold)
    sizes = threshold_sizes(a.output, speeds, threshold)
    space = interval_space(a.output, sizes, overlap=not a.no_overlap)
    if a.max_rows is None:
        return space
    return limited(space, _numbers(a.max_rows, "--max-rows", a.devices))


def _speeds(a: argparse.Namespace) -> tuple[float, ...]:
    return _numbers(a.speeds, "--speeds", a.devices) if a.speeds is not None else (1.0,) * a.devices


def _required(a: argparse.Namespace, speeds: Sequence[float]) -> tuple[Interval, ...] | None:
    """What each device reads for its share of the next layer, None where none follows."""
    if a.next is None:
        return None
    try:
        kernel, stride, padding = (int(part) for part in a.next.split(","))
    except ValueError:
        raise InputError(
            f"expected kernel, stride and padding as 3 whole numbers, got {a.next!r}", where="--next"
        ) from None
    try:
        rows = output_extent(a.output, kernel, stride, pads=(padding, padding))
        pieces = naive_pieces(rows, list(speeds), a.output, kernel, stride, pad_before=padding)
    except InputError as e:
        raise InputError(str(e), where="--next") from e
    return tuple((piece.input.start, piece.input.end) for piece in pieces)


def _fraction(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"expected a number like 5 or 100/3, got {text!r}", where="--threshold") from None


def _numbers(text: str, option: str, count: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != count:
        raise InputError(f"expected {count} numbers separated by commas, got {text!r}", where=option)
    return numbers
