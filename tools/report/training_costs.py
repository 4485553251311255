"""What a training step costs by the model: each op with its backward pass, and what is saved."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tilewright.compilation.kernel_records import KernelRecord
from tilewright.compilation.lowering import Lowered
from tilewright.ir import Ref
from tilewright.passes import PassContext
from tilewright.passes.graph.recompute.kernel_view import kernel_view
from tilewright.passes.graph.recompute.saved_values import saved_values

#: ops and saved values that the text names; all are in the facts
SHOWN = 20
#: locations of what a step adds behind the network
_OPTIMIZER, _LOSS = "optimizer", "loss"


def training_costs(lowered: Lowered) -> dict[str, Any]:
    """Facts of a lowered step, in seconds and bytes.

    ops: a row per op of the network by falling backward seconds, with its forward and backward kernels; a
    kernel counts under the op that shapes it. A kernel of the backward pass is told by the prime of its
    location. loss, optimizer: the same sums of what the step adds. saved, recomputed: see `saved_values`.
    """
    records = {r.name: r for r in lowered.records}
    rows: dict[str, dict[str, Any]] = defaultdict(_row)
    for call in lowered.thread.main.body.ops:
        if call.name == "tensor.call" and isinstance(ref := call["callee"], Ref):
            record = records[ref.name]
            place = call.loc or next(iter(record.origins), "")
            row = rows[place.rstrip("'")]
            _add(row["backward" if place.endswith("'") else "forward"], record)
    added = {name: rows.pop(name, _row()) for name in (_LOSS, _OPTIMIZER)}
    others = rows.pop("", _row())
    context = PassContext(target=str(lowered.target), hardware=lowered.target.hardware)
    graph = lowered.graph.main
    saved, recomputed = saved_values(graph, lowered.target.hardware, context)
    ops = [{"op": name, **row} for name, row in rows.items()]
    return {
        "ops": sorted(ops, key=lambda r: -r["backward"]["estimate_s"]),
        **added,
        "others": others,
        "saved": [
            {
                "op": s.op.loc or s.op.name,
                "type": str(s.value.type),
                "bytes": s.value.tensor.nbytes,
                "seconds": s.seconds,
            }
            for s in saved
        ],
        "recomputed": [{"op": r.op.loc or r.op.name, "seconds": r.seconds} for r in recomputed],
        "peak_bytes": kernel_view(graph, lowered.target.hardware, context).peak_bytes,
    }


def _row() -> dict[str, Any]:
    return {side: {"estimate_s": 0.0, "bound_s": 0.0, "kernels": {}} for side in ("forward", "backward")}


def _add(side: dict[str, Any], record: KernelRecord) -> None:
    cost = record.cost or {}
    side["estimate_s"] += cost.get("estimate_s", 0.0)
    side["bound_s"] += cost.get("bound_s", 0.0)
    side["kernels"][record.name] = side["kernels"].get(record.name, 0) + 1


def training_text(facts: dict[str, Any]) -> str:
    """The facts as text: sums, the ops with the dearest backward pass, what is saved and computed again."""
    ops = facts["ops"]
    lines = [f"{'':44} {'forward us':>11} {'backward us':>12} {'bound us':>9} {'times bound':>12}"]
    for name, rows in (
        ("all ops of the network", ops),
        ("loss", [facts["loss"]]),
        ("optimizer", [facts["optimizer"]]),
        ("others", [facts["others"]]),
    ):
        lines.append(_line(name, rows))
    lines += ["", f"the {min(SHOWN, len(ops))} ops with the dearest backward pass:"]
    for row in ops[:SHOWN]:
        lines.append(_line(row["op"], [row]))
        lines += [f"    {n} x {kernel}" for kernel, n in row["backward"]["kernels"].items()]
    saved, recomputed = facts["saved"], facts["recomputed"]
    nbytes, seconds = sum(s["bytes"] for s in saved), sum(s["seconds"] for s in saved)
    lines += [
        "",
        f"saved for the backward pass: {len(saved)} values, {nbytes / 2**20:.1f} MiB, {1e6 * seconds:.1f} us "
        f"to keep and read; peak on the device {facts['peak_bytes'] / 2**20:.1f} MiB",
        *(
            f"  {s['bytes'] / 2**20:9.2f} MiB {1e6 * s['seconds']:9.1f} us  {s['type']:28} {s['op']}"
            for s in sorted(saved, key=lambda s: -s["bytes"])[:SHOWN]
        ),
        f"computed again: {len(recomputed)} ops, {1e6 * sum(r['seconds'] for r in recomputed):.1f} us",
        *(f"  {1e6 * r['seconds']:9.1f} us  {r['op']}" for r in recomputed[:SHOWN]),
    ]
    return "\n".join(lines)


def _line(name: str, rows: list[dict[str, Any]]) -> str:
    forward, backward, bound = (
        sum(r[side][key] for r in rows)
        for side, key in (("forward", "estimate_s"), ("backward", "estimate_s"), ("backward", "bound_s"))
    )
    ratio = f"{backward / bound:11.1f}x" if bound else ""
    return f"{name[:44]:44} {1e6 * forward:11.1f} {1e6 * backward:12.1f} {1e6 * bound:9.1f} {ratio:>12}"
