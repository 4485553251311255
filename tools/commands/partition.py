"""`tilewright partition`: how one layer's rows may be cut over devices, the best cut, whole networks."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from tilewright.costmodel.op_work import op_flops
from tilewright.costmodel.partition.exact import least_objective
from tilewright.costmodel.partition.intervals import (
    IntervalSpace,
    count_partitions,
    interval_space,
    limited,
    threshold_sizes,
)
from tilewright.costmodel.partition.naive import output_extent, split_extent
from tilewright.costmodel.partition.objective import LayerObjective, Weights
from tilewright.costmodel.partition.pruned import pruned_search
from tilewright.distributed import rank_module
from tilewright.ir import InputError, Module, Op, WorkError, show
from tilewright.ir.graph_ops.communication import halo_pieces
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.ir.opdef import op_def
from tilewright.ir.windows import Interval, RowWindow
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import GRAPH
from tilewright.running.checking import largest_error, random_inputs
from tilewright.running.interpreting import interpret
from tilewright.runtime.atomic_file import atomic_file
from tilewright.tools.commands.network import load_network


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
    """The rows that each device reads for its share of the next layer, None where none follows."""
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
        window = RowWindow(kernel, stride, pad_before=padding)
        return tuple(window.reads(cut, a.output) for cut in split_extent(rows, speeds))
    except InputError as e:
        raise InputError(str(e), where="--next") from e


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


#: relative error of float64 results above which a division counts as wrong
TOLERANCE = 1e-9


def run_network_partition(a: argparse.Namespace) -> None:
    """Divide, check where asked, write, report."""
    module = load_network(a)
    parts = [rank_module(module, a.mode, a.devices, rank, a.mode_options) for rank in range(a.devices)]
    whole = run_pipeline(module, GRAPH, PassContext())
    result: dict[str, Any] = {
        "devices": a.devices,
        "mode": a.mode,
        "whole": facts_of_part(whole),
        "ranks": [facts_of_part(part) for part in parts],
    }
    if a.check:
        result["relative_error"] = _checked(whole, parts, a.seed)
    if a.output:
        _write(Path(a.output), parts)
    print(json.dumps(result) if a.json else "\n".join(_lines(a.network, result)))


def facts_of_part(part: Module) -> dict[str, Any]:
    """Ops, FLOP, bytes of constants, and communications of a graph-level module.

    `bytes_received` counts what comes from other ranks, by kind of op: of an all-reduce twice, of a
    reduce-scatter once, what all members but one hold (both as rings).
    """
    ops = part.main.body.ops
    talking = [op for op in ops if "communicate" in op_def(op.name).effects]
    received: Counter[str] = Counter()
    for op in talking:
        received[op.name.removeprefix("graph.")] += bytes_received(op)
    return {
        "ops": len(ops) - 1,
        "flop": sum(op_flops(op) for op in ops if op not in talking),
        "weight_bytes": sum(op.result.tensor.nbytes for op in ops if op.name == "graph.constant"),
        "communications": len(talking),
        "bytes_received": dict(received),
    }


def bytes_received(op: Op) -> int:
    """Bytes that a communication op brings from other ranks."""
    if op.name == "graph.send":
        return 0
    if op.name == "graph.recv":
        return op.result.tensor.nbytes
    operand, rank = op.operands[0].tensor, op.integer("rank")
    members = len(op.integers("ranks"))
    if op.name == "graph.halo_exchange":
        made = op.result.tensor
        pieces = halo_pieces(_pairs(op, "owned"), _pairs(op, "needed"), rank)
        rows = sum(p.end - p.start for p in pieces if p.member != rank)
        axis = op.integer("axis")
        others = prod(n for d, n in enumerate(made.shape) if d != axis)
        return rows * others * (operand.nbytes // operand.size if operand.size else made.nbytes // made.size)
    if op.name == "graph.all_gather":
        return op.result.tensor.nbytes - operand.nbytes
    rounds = 2 if op.name == "graph.all_reduce" else 1
    return rounds * operand.nbytes * (members - 1) // members


def _pairs(op: Op, key: str) -> list[tuple[int, int]]:
    return [(start, end) for start, end in cast("tuple[tuple[int, int], ...]", op[key])]


def _checked(whole: Module, parts: Sequence[Module], seed: int) -> float:
    """The largest relative error of any rank's results; raises WorkError where it is no rounding."""
    inputs = random_inputs(whole.input_names, whole.input_types, seed)
    expected = interpret(whole, *inputs, precision="fp64")
    results = interpret_ranks(parts, *inputs, precision="fp64")
    error = max(largest_error(outputs, expected) for outputs in results)
    if error > TOLERANCE:
        raise WorkError(f"the divided network is wrong: relative error {error:.3g} is above {TOLERANCE:g}")
    return error


def _write(folder: Path, parts: Sequence[Module]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, part in enumerate(parts):
            with atomic_file(folder / f"rank{rank}.ir") as f:
                f.write(show(part).encode())
    except OSError as e:
        raise InputError(f"cannot write the parts: {e.strerror}", where=str(folder)) from e


def _lines(network: str, result: dict[str, Any]) -> list[str]:
    whole = result["whole"]
    out = [
        f"{network} on {result['devices']} devices, mode {result['mode']}: "
        f"{whole['flop'] / 1e9:.3f} GFLOP and {whole['weight_bytes'] / 1e6:.2f} MB of weights in all"
    ]
    for rank, row in enumerate(result["ranks"]):
        share = row["flop"] / whole["flop"] if whole["flop"] else 0.0
        moved = ", ".join(f"{k} {v / 1e6:.3f} MB" for k, v in row["bytes_received"].items() if v)
        out.append(
            f"  rank {rank}: {row['ops']} ops, {row['flop'] / 1e9:.3f} GFLOP ({share:.1%}), "
            f"{row['weight_bytes'] / 1e6:.2f} MB of weights, {row['communications']} communications"
            + (f", received: {moved}" if moved else "")
        )
    if "relative_error" in result:
        out.append(
            f"all devices together equal the whole network: relative error {result['relative_error']:.2e}"
        )
    return out
