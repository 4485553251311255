"""Peak memory of networks beyond their weights, planned here and measured or estimated for PyTorch.

`python -m tilewright.tools.compare_memory NET.relay ... [--batch N ...] [--json FILE]`: compiles without a
device; measures PyTorch on the same graph where it is installed and sees a GPU, else only estimates it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.runtime.arena.placement import arena_lower_bound
from tilewright.runtime.atomic_file import write_atomically
from tilewright.runtime.plan.execution_plan import BufferKind, ExecutionPlan
from tilewright.tools.bench.networks import with_batch
from tilewright.tools.report.wording import bytes_text
from tilewright.tools.torch_peer.memory import torch_peaks
from tilewright.tools.torch_peer.program import TorchProgram

#: how PyTorch runs a network whose memory is measured
TORCH_WAYS = ("eager", "graph", "compile")


def main(argv: Sequence[str] | None = None) -> int:
    """Print one paragraph per network and batch size, and write all numbers as JSON if asked to."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("networks", nargs="+", metavar="NET.relay")
    p.add_argument("--batch", type=int, nargs="+", default=[1], metavar="N", help="batch sizes (default 1)")
    p.add_argument("--target", default="null", help="default null: as for an sm_90a GPU")
    p.add_argument("--conv-algorithm", default="auto", help="as in tilewright.compile (default auto)")
    p.add_argument("--no-torch", action="store_true", help="only estimate PyTorch")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args(argv)
    measured = not a.no_torch and _torch_has_gpu()
    rows = []
    for path in a.networks:
        for batch in a.batch:
            row = memory_row(path, batch, a.target, a.conv_algorithm, measured=measured)
            print(_paragraph(row), flush=True)
            rows.append(row)
    if a.json:
        write_atomically(a.json, json.dumps(rows, indent=1))
    return 0


def memory_row(
    path: str, batch: int, target: str = "null", conv_algorithm: Any = "auto", *, measured: bool = False
) -> dict[str, Any]:
    """Bytes for one network: ours from the plan, PyTorch's by liveness and, if `measured`, on the GPU."""
    module = with_batch(tw.frontends.relay.load(path, params="random"), batch)
    with tw.compile(module, target=target, conv_algorithm=conv_algorithm) as exe:
        plan = exe.plan
    bound = arena_lower_bound(plan)
    imported = sum(array.nbytes for array in module.constants.values())
    ours = {kind: _bytes_of(plan, kind) for kind in ("constant", "input", "output")}
    beyond = plan.arena_bytes + ours["input"] + ours["output"]
    program = TorchProgram(module)
    row: dict[str, Any] = {
        "network": Path(path).stem,
        "batch": batch,
        "weights_imported": imported,
        "constants": ours["constant"],
        "constants_beyond_imported": max(0, ours["constant"] - imported),
        "arena": plan.arena_bytes,
        "inputs": ours["input"],
        "outputs": ours["output"],
        "beyond_weights": beyond,
        "arena_lower_bound": bound,
        "gap": plan.arena_bytes / bound - 1 if bound else 0.0,
        "torch_estimate": program.estimated_peak(),
    }
    row["ratio_to_estimate"] = beyond / row["torch_estimate"]
    if measured:
        row |= torch_peaks(program)
        for way in TORCH_WAYS:
            row[f"ratio_to_{way}"] = beyond / row[f"torch_{way}"]
    return row


def _bytes_of(plan: ExecutionPlan, kind: BufferKind) -> int:
    return sum(b.nbytes for b in plan.buffers if b.kind == kind)


def _torch_has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _paragraph(row: dict[str, Any]) -> str:
    text = {k: bytes_text(v) for k, v in row.items() if isinstance(v, int)}
    lines = [
        f"{row['network']}, batch {row['batch']}: {text['beyond_weights']} beyond the weights = arena "
        f"{text['arena']} (bound {text['arena_lower_bound']}, gap {100 * row['gap']:.2f} %) + inputs "
        f"{text['inputs']} + outputs {text['outputs']}",
        f"  weights: {text['weights_imported']} as imported, {text['constants']} as we keep them "
        f"({text['constants_beyond_imported']} more)",
        f"  PyTorch, by liveness of its calls, without workspaces: {text['torch_estimate']}; ours is "
        f"{row['ratio_to_estimate']:.3f} of it",
    ]
    if "torch_eager" in row:
        lines.append(
            f"  PyTorch {row['torch']} on {row['device']}: eager {text['torch_eager']} (besides "
            f"{text['torch_kept_workspace']} of workspace kept between runs), captured graph "
            f"{text['torch_graph']}, compiled {text['torch_compile']}; ours: "
            + ", ".join(f"{row[f'ratio_to_{way}']:.3f}" for way in TORCH_WAYS)
            + " of them"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
