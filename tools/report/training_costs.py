"""What a training step costs by the model: seconds of each op, what is saved, and the bytes of the peak."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tilewright.compilation.kernel_records import KernelRecord
from tilewright.compilation.lowering import Lowered
from tilewright.compilation.memory_budget import one_stream_plan
from tilewright.ir import Ref
from tilewright.passes import PassContext
from tilewright.passes.graph.recompute.kernel_view import kernel_view
from tilewright.passes.graph.recompute.saved_values import saved_values
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan

#: ops and saved values that the text names; all are in the facts
SHOWN = 20
#: locations of what a step adds behind the network
_OPTIMIZER, _LOSS = "optimizer", "loss"


def training_costs(lowered: Lowered) -> dict[str, Any]:
    """Facts of a lowered step, in seconds and bytes.

    ops: a row per op of the network by falling backward seconds, with its forward and backward kernels; a
    kernel counts under the op that shapes it. A kernel of the backward pass is told by the prime of its
    location. loss, optimizer: the same sums of what the step adds. saved, recomputed: see `saved_values`.
    memory: see `step_memory`.
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
        "memory": step_memory(lowered),
    }


def _row() -> dict[str, Any]:
    return {side: {"estimate_s": 0.0, "bound_s": 0.0, "kernels": {}} for side in ("forward", "backward")}


def _add(side: dict[str, Any], record: KernelRecord) -> None:
    cost = record.cost or {}
    side["estimate_s"] += cost.get("estimate_s", 0.0)
    side["bound_s"] += cost.get("bound_s", 0.0)
    side["kernels"][record.name] = side["kernels"].get(record.name, 0) + 1


def training_text(facts: dict[str, Any]) -> str:
    """The facts as text: sums, the ops with the dearest backward pass, what is saved and computed again,
    and where the bytes of the peak are.
    """
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
        "",
        step_memory_text(facts["memory"]),
    ]
    return "\n".join(lines)


def _line(name: str, rows: list[dict[str, Any]]) -> str:
    forward, backward, bound = (
        sum(r[side][key] for r in rows)
        for side, key in (("forward", "estimate_s"), ("backward", "estimate_s"), ("backward", "bound_s"))
    )
    ratio = f"{backward / bound:11.1f}x" if bound else ""
    return f"{name[:44]:44} {1e6 * forward:11.1f} {1e6 * backward:12.1f} {1e6 * bound:9.1f} {ratio:>12}"


def step_memory(lowered: Lowered) -> dict[str, Any]:
    """Facts of a lowered step's plan on one stream, in bytes.

    beside: by kind, what has memory of its own (state, inputs, constants). arena: what all else takes. at:
    the kernel and the op during which the most is alive, and these bytes; the arena takes less where a
    result lies over an operand, and more where arrays do not fit between others. alive: rows of arrays that
    are alive then, by the pass and the kind of kernel that write them and by dtype, by falling bytes.
    """
    plan = one_stream_plan(lowered)
    buffers = {b.name: b for b in plan.buffers}
    beside: dict[str, int] = defaultdict(int)
    for b in plan.buffers:
        if b.kind not in ("arena", "alias"):
            beside[b.kind] += b.nbytes
    first, last = _lifetimes(plan, buffers)
    sizes = [0] * (len(plan.launches) + 1)  # what becomes alive with a launch, less what is over before it
    for name, i in first.items():
        sizes[i] += buffers[name].nbytes
        sizes[min(last[name], len(plan.launches) - 1) + 1] -= buffers[name].nbytes
    alive_bytes, at, most = 0, 0, 0
    for i, change in enumerate(sizes[:-1]):
        alive_bytes += change
        if alive_bytes > most:
            at, most = i, alive_bytes
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, i in first.items():
        if not i <= at <= last[name]:
            continue
        launch, dtype = plan.launches[i], buffers[name].dtype
        side = "backward" if any(o.endswith("'") for o in launch.origin) else "forward"
        key = (side, launch.kernel.rsplit("_", 1)[0], dtype)
        row = rows.setdefault(key, {"pass": side, "kernels": key[1], "dtype": dtype, "bytes": 0, "arrays": 0})
        row["bytes"] += buffers[name].nbytes
        row["arrays"] += 1
    where = plan.launches[at]
    return {
        "beside": dict(beside),
        "arena": plan.arena_bytes,
        "at": {"kernel": where.kernel, "op": next(iter(where.origin), ""), "launch": at, "bytes": most},
        "alive": sorted(rows.values(), key=lambda r: -r["bytes"]),
    }


def _lifetimes(plan: ExecutionPlan, buffers: dict[str, Buffer]) -> tuple[dict[str, int], dict[str, int]]:
    """Per buffer of the arena the first and the last launch that touch it or a part of it."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def holder(name: str) -> str:
        while buffers[name].kind == "alias":
            name = buffers[name].base
        return name

    for i, launch in enumerate(plan.launches):
        for name in map(holder, launch.args):
            if buffers[name].kind == "arena":
                first.setdefault(name, i)
                last[name] = i
    last.update((name, len(plan.launches)) for name in map(holder, plan.outputs) if name in first)
    return first, last


def step_memory_text(facts: dict[str, Any]) -> str:
    """The facts as text: sums, then the largest rows."""
    beside, at = facts["beside"], facts["at"]
    total = sum(beside.values()) + facts["arena"]
    held = ", ".join(f"{kind} {_mib(n)}" for kind, n in beside.items())
    return "\n".join(
        [
            f"memory of the plan: {_mib(total)} MiB = {held} and arena {_mib(facts['arena'])}",
            f"most is alive in {at['kernel']} ({at['op']}): {_mib(at['bytes'])} MiB, written by",
            *(
                f"  {r['bytes'] / 2**20:9.2f} MiB {r['arrays']:5} x {r['dtype']:9} {r['pass']:8} "
                f"{r['kernels']}"
                for r in facts["alive"][:SHOWN]
            ),
        ]
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f}"
