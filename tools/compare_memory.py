"""Peak memory of networks beyond their weights and times of replays, beside PyTorch's peak on the same graph.

`python -m tilewright.tools.compare_memory NET.relay ... [--batch N ...] [--precision P ...] [--json FILE]`
compiles without a device. Where PyTorch is installed and sees a GPU, its peak is measured in each precision,
else only estimated. Replays are measured with `--target cuda` on a GPU, else their time is the model's.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.devices.targets import device_name, resolve_target
from tilewright.ir import Module
from tilewright.ir.types import array_type
from tilewright.running.checking import random_inputs
from tilewright.running.executable import Executable
from tilewright.runtime.arena.placement import arena_lower_bound
from tilewright.runtime.atomic_file import write_atomically
from tilewright.runtime.plan.execution_plan import BufferKind, ExecutionPlan
from tilewright.tools.bench.networks import with_batch
from tilewright.tools.report.wording import bytes_text, seconds_text
from tilewright.tools.torch_peer.module import torch_module
from tilewright.tools.torch_peer.program import TorchProgram

#: how PyTorch runs a network whose memory is measured
TORCH_WAYS = ("eager", "graph", "compile")
#: what PyTorch calls the floats of a model cast to each precision
_FLOATS = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a paragraph per network, precision and batch size, then a table; write JSON if asked to."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("networks", nargs="+", metavar="NET.relay")
    p.add_argument("--batch", type=int, nargs="+", default=[1], metavar="N", help="batch sizes (default 1)")
    p.add_argument("--target", default="null", help="default null: as for an sm_90a GPU")
    p.add_argument("--conv-algorithm", default="auto", help="as in tilewright.compile (default auto)")
    p.add_argument("--precision", choices=tuple(_FLOATS), nargs="+", default=["fp32"], metavar="P")
    p.add_argument("--no-torch", action="store_true", help="only estimate PyTorch")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args(argv)
    measured = not a.no_torch and _torch_has_gpu()
    rows = []
    for path in a.networks:
        for precision in dict.fromkeys(a.precision):
            for batch in a.batch:
                row = memory_row(path, batch, a.target, a.conv_algorithm, precision, measured=measured)
                print(_paragraph(row), flush=True)
                rows.append(row)
    print(_table(rows))
    if a.json:
        write_atomically(a.json, json.dumps(rows, indent=1))
    return 0


def memory_row(
    path: str,
    batch: int,
    target: str = "null",
    conv_algorithm: Any = "auto",
    precision: Any = "fp32",
    *,
    measured: bool = False,
) -> dict[str, Any]:
    """Bytes for one network: ours from the plan, PyTorch's by liveness and, if `measured`, on the GPU.

    The seconds of one replay are measured where the target is a GPU that is there, else the model's.
    """
    module = with_batch(tw.frontends.relay.load(path, params="random"), batch)
    with tw.compile(module, target=target, conv_algorithm=conv_algorithm, precision=precision) as exe:
        plan, replay_s = exe.plan, exe.report()["streams"]["replay_s"]
        here = bool(device_name(resolve_target(target)))
        measured_s = _measured_replay_s(exe, module) if here else None
    bound = arena_lower_bound(plan)
    imported = sum(array.nbytes for array in module.constants.values())
    ours = {kind: _bytes_of(plan, kind) for kind in ("constant", "input", "output")}
    beyond = plan.arena_bytes + ours["input"] + ours["output"]
    program = TorchProgram(module)
    bits = 16 if precision in ("fp16", "bf16") else 32
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
        "precision": precision,
        "replay_model_s": min(replay_s.values(), default=None),
        "replay_measured_s": measured_s,
        "torch_estimate": program.estimated_peak(bits),
        "torch_without_in_place": program.estimated_peak(bits, in_place=False),
    }
    row["ratio_to_estimate"] = beyond / row["torch_estimate"]
    if measured:
        row |= torch_peaks(program, precision)
        row["torch_least"] = min(row[f"torch_{way}"] for way in TORCH_WAYS)
        for way in (*TORCH_WAYS, "least"):
            row[f"ratio_to_{way}"] = beyond / row[f"torch_{way}"]
    return row


def _inputs_of(module: Module) -> list[Any]:
    """Random inputs; integers are indices, and 0 and 1 lie within every table."""
    types = [array_type(p.tensor) for p in module.main.params]
    return [a % 2 if a.dtype.kind in "iu" else a for a in random_inputs(module.input_names, types, seed=1)]


def _measured_replay_s(exe: Executable, module: Module) -> float:
    """The median seconds of warm replays on the device."""
    return statistics.median(exe.time(*_inputs_of(module), repeats=50))


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
        f"{row['network']}, batch {row['batch']}, {row['precision']}: {text['beyond_weights']} "
        f"beyond the weights = arena {text['arena']} (bound {text['arena_lower_bound']}, gap "
        f"{100 * row['gap']:.2f} %) + inputs {text['inputs']} + outputs {text['outputs']}",
        f"  weights: {text['weights_imported']} as imported, {text['constants']} as we keep them "
        f"({text['constants_beyond_imported']} more)",
        f"  PyTorch, by liveness of its calls, without workspaces: {text['torch_estimate']}; ours is "
        f"{row['ratio_to_estimate']:.3f} of it; where every call makes a new value: "
        f"{text['torch_without_in_place']}, {row['beyond_weights'] / row['torch_without_in_place']:.3f}",
    ]
    if "torch_eager" in row:
        lines.append(
            f"  PyTorch {row['torch']} on {row['device']}: eager {text['torch_eager']} (besides "
            f"{text['torch_kept_workspace']} of workspace kept between runs), captured graph "
            f"{text['torch_graph']}, compiled {text['torch_compile']}; ours: "
            + ", ".join(f"{row[f'ratio_to_{way}']:.3f}" for way in TORCH_WAYS)
            + f" of them, {row['ratio_to_least']:.3f} of the least"
        )
    if row["replay_model_s"] is not None:
        measured = row["replay_measured_s"]
        lines.append(
            f"  one replay: {seconds_text(row['replay_model_s'])} by the model"
            + (f", {seconds_text(measured)} measured" if measured is not None else "")
        )
    return "\n".join(lines)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per network, precision and batch size: our bytes and PyTorch's, their ratio, the replay."""
    lines = [
        f"{'network':20} {'precision':9} {'batch':>5} {'ours MB':>8} {'PyTorch MB':>10} {'ratio':>6} "
        f"{'new values':>10} {'replay us':>9}"
    ]
    for row in rows:
        ratio = row.get("ratio_to_least", row["ratio_to_estimate"])
        replay_s = row["replay_measured_s"] or row["replay_model_s"] or 0.0
        lines.append(
            f"{row['network']:20} {row['precision']:9} {row['batch']:5} {row['beyond_weights'] / 1e6:8.2f} "
            f"{row.get('torch_least', row['torch_estimate']) / 1e6:10.2f} {ratio:6.3f} "
            f"{row['beyond_weights'] / row['torch_without_in_place']:10.3f} {replay_s * 1e6:9.1f}"
        )
    measured = any("torch_least" in row for row in rows)
    timed = any(row["replay_measured_s"] for row in rows)
    lines.append(
        ("PyTorch: the least of what was measured" if measured else "PyTorch: by liveness, calls in place")
        + "; new values: our share of its liveness where every call makes one; replays: "
        + ("measured" if timed else "by the model")
    )
    return "\n".join(lines)


def torch_peaks(program: TorchProgram, precision: str = "fp32") -> dict[str, Any]:
    """Bytes allocated at the peak of one warm run, inputs and outputs included, weights not.

    `torch_eager` is the allocator's peak less what it held before the inputs were there and less
    `torch_kept_workspace`: what libraries keep between runs once warm. `torch_graph` is what the private pool
    of a captured graph reserves, plus the inputs. `torch_compile` is the allocator's peak as for eager calls,
    by `torch.compile` in its default mode, which keeps no pool. In 16 bits weights are cast before, and
    inputs, which are float32 as ours are, by the run. TF32 is on in precision `tf32` alone; cuDNN chooses by
    its heuristics.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = False
    arrays, dtype = _inputs_of(program.module), _FLOATS[precision]
    cuda = torch.cuda
    gc.collect()  # weights of a network before would count as what is there, and leave while this one runs
    with torch.no_grad():
        torch.zeros(1, device="cuda")
        run = program.function(torch, "cuda", dtype)
        cuda.synchronize()
        weights = cuda.memory_allocated()
        inputs = [torch.from_numpy(a).cuda() for a in arrays]
        input_bytes = cuda.memory_allocated() - weights
        eager, workspace = _peak_and_kept(cuda, run, inputs, weights + input_bytes)
        pool = _graph_pool_bytes(torch, run, inputs)
        compiled = _compiled_peak(torch, program, inputs, dtype)
    cuda.empty_cache()
    return {
        "torch": torch.__version__,
        "device": cuda.get_device_name(),
        "torch_eager": eager + input_bytes,
        "torch_kept_workspace": workspace,
        "torch_graph": pool + input_bytes,
        "torch_compile": compiled + input_bytes,
    }


def _peak_and_kept(cuda: Any, run: Callable[..., Any], inputs: list[Any], before: int) -> tuple[int, int]:
    """Bytes that a warm run allocates beyond what is there, and what is there beyond `before`."""
    for _ in range(3):
        run(*inputs)
    cuda.synchronize()
    there = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    outputs = run(*inputs)
    cuda.synchronize()
    peak = cuda.max_memory_allocated()
    del outputs
    return peak - there, there - before


def _compiled_peak(torch: Any, program: TorchProgram, inputs: list[Any], dtype: str) -> int:
    """Bytes that a warm run of the compiled network allocates, its outputs included."""
    network, floats = torch_module(program.module, dtype=dtype, attention=True), getattr(torch, dtype)
    network.to("cuda")

    def run(*given: Any) -> Any:
        return network(*(x.to(floats) if x.is_floating_point() else x for x in given))

    peak, _ = _peak_and_kept(torch.cuda, torch.compile(run, dynamic=False), inputs, 0)
    return peak


def _graph_pool_bytes(torch: Any, run: Any, inputs: list[Any]) -> int:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(*inputs)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    reserved = int(torch.cuda.memory_reserved()) - int(before)
    del outputs, graph
    return reserved


if __name__ == "__main__":
    sys.exit(main())
