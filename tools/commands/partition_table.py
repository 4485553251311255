"""What each partitioner makes of a network by the model: kernels, launches saved, estimated seconds."""

from __future__ import annotations

import time
from typing import Any

from tilewright.compilation.lowering import lower
from tilewright.compilation.option_values import PARTITIONER
from tilewright.devices.targets import Target
from tilewright.ir import InputError, Module
from tilewright.passes import Instrument, PassContext, Step
from tilewright.passes.tensor.fusion.partitioners import PARTITIONERS, choose, price


class _BeforeFusion(Instrument):
    """Keeps the flat tensor program that the pass fuse-kernels is given."""

    def __init__(self) -> None:
        self.module: Module | None = None

    def before(self, step: Step, module: Module) -> None:
        """Remember what the pass sees."""
        if step.configured.name == "fuse-kernels":
            self.module = module


def compare_partitioners(module: Module, target: Target) -> list[dict[str, Any]]:
    """One row per partitioner: kernels launched, estimated seconds, whether it is known to be the cheapest
    partition, seconds to choose it.

    Raises InputError where the module holds kernels already.
    """
    seen = _BeforeFusion()
    lower(module, target, [seen], partitioner=PARTITIONER)
    if seen.module is None or any(op.name == "tensor.call" for op in seen.module.main.body.ops):
        raise InputError("expected a network whose ops are not kernels yet", where=f"@{module.name}")
    start = time.perf_counter()
    priced = price(seen.module.main, PassContext(target=str(target), hardware=target.hardware))
    pricing = time.perf_counter() - start
    rows = []
    others = ("tensor.join", "tensor.communicate")  # no kernels
    joins = sum(1 << i for i, op in enumerate(priced.graph.ops) if op.name in others)
    for name in PARTITIONERS:
        start = time.perf_counter()
        cover = choose(priced, name)
        rows.append(
            {
                "partitioner": name,
                "kernels": sum(not joins & s for s in cover.sets),
                "estimate_s": cover.seconds,
                "cheapest": name == "exact" and cover.exact,
                "ops": len(priced.graph.ops),
                "candidates": len(priced.seconds),
                "pricing_s": pricing,
                "choosing_s": time.perf_counter() - start,
            }
        )
    return rows


def partitioner_table(network: str, target: Target, rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    first = rows[0]
    lines = [
        f"{network} for {target}: {first['ops']} ops, {first['candidates']} sets of ops can be one kernel "
        f"(priced in {first['pricing_s']:.1f} s)",
        f"{'partitioner':12} {'kernels':>8} {'estimate us':>12} {'chosen in s':>12}",
    ]
    for r in rows:
        estimate_us, note = 1e6 * r["estimate_s"], "  cheapest of all partitions" if r["cheapest"] else ""
        lines.append(
            f"{r['partitioner']:12} {r['kernels']:8} {estimate_us:12.1f} {r['choosing_s']:12.2f}{note}"
        )
    return "\n".join(lines)
