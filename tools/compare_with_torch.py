"""Times networks on one NVIDIA GPU beside PyTorch eager and in a CUDA graph, results checked first.

`python -m tilewright.tools.compare_with_torch NET.relay ... [--json FILE]`: results against float64, then
one process, the three interleaved round by round, float32 with TF32 off, cuDNN autotuning on, warm caches,
medians with the 10th and 90th percentile.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.commands.network import random_inputs, relative_error
from tilewright.executable import Executable
from tilewright.tools.torch_peer import torch_function


def main(argv: Sequence[str] | None = None) -> int:
    """Compare every network given; exit code 1 where a result is wrong."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("networks", nargs="+", metavar="NET.relay")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--replays", type=int, default=10, help="timed runs per round")
    p.add_argument("--no-time", action="store_true", help="only check results")
    p.add_argument("--kernels", type=int, default=0, metavar="N", help="also list the N slowest kernels")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args(argv)
    rows = [compare(path, a) for path in a.networks]
    if a.json:
        Path(a.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 1 if any(r["relative_error"] > 1e-4 for r in rows) else 0


def compare(path: str, a: argparse.Namespace) -> dict[str, Any]:
    """One network: error against float64 on the CPU, then times in milliseconds."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    module = tw.frontends.relay.load(path, params="random")
    exe = tw.compile(module, target="cuda")
    arrays = random_inputs(exe.input_names, exe.input_types, seed=1)
    reference = tw.interpret(module, *arrays, precision="fp64")
    ours = exe(*arrays)
    row: dict[str, Any] = {
        "network": Path(path).stem,
        "device": exe.device,
        "relative_error": max(relative_error(o, r) for o, r in zip(ours, reference, strict=True)),
        "launches": len(exe.plan.launches),
        "spill_bytes": sum(k.resources.spill_bytes for k in exe.plan.kernels if k.resources),
    }
    with torch.no_grad():
        tensors = [torch.from_numpy(x).cuda() for x in arrays]
        eager = torch_function(module, device="cuda")
        peer = [t.cpu().numpy() for t in eager(*tensors)]
        row["torch_relative_error"] = max(relative_error(o, r) for o, r in zip(peer, reference, strict=True))
        if not a.no_time:
            row.update(_times(torch, exe, arrays, tensors, eager, a))
    print(json.dumps(row), flush=True)
    if a.kernels:
        for name, seconds in sorted(exe.time_kernels(*arrays, repeats=10), key=lambda r: -r[1])[: a.kernels]:
            print(f"  {1e6 * seconds:8.1f} us  {name}", flush=True)
    exe.close()
    return row


def _times(
    torch: Any,
    exe: Executable,
    arrays: list[np.ndarray],
    tensors: list[Any],
    eager: Callable[..., Any],
    a: argparse.Namespace,
) -> dict[str, Any]:
    graph = _graphed(torch, eager, tensors)
    samples: dict[str, list[float]] = {"ours": [], "torch_eager": [], "torch_graph": []}
    for _ in range(a.rounds):
        samples["ours"] += [1e3 * s for s in exe.time(*arrays, repeats=a.replays)]
        samples["torch_eager"] += _events(torch, lambda: eager(*tensors), a.replays)
        samples["torch_graph"] += _events(torch, graph, a.replays)
    out: dict[str, Any] = {"torch": torch.__version__}
    for name, values in samples.items():
        low, median, high = np.percentile(values, [10, 50, 90])
        out[f"{name}_ms"] = [round(float(v), 4) for v in (median, low, high)]
    return out


def _graphed(torch: Any, fn: Callable[..., Any], tensors: list[Any]) -> Callable[[], Any]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn(*tensors)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn(*tensors)
    replay: Callable[[], Any] = graph.replay
    return replay


def _events(torch: Any, fn: Callable[[], Any], repeats: int) -> list[float]:
    fn()
    out = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        out.append(start.elapsed_time(end))
    return out


if __name__ == "__main__":
    sys.exit(main())
