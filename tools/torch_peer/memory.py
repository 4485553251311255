"""PyTorch's peak memory beyond the weights for one network: eager, captured in a CUDA graph, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir.types import array_type
from tilewright.running.checking import random_inputs
from tilewright.tools.torch_peer.module import torch_module
from tilewright.tools.torch_peer.program import TorchProgram


def torch_peaks(program: TorchProgram) -> dict[str, Any]:
    """Bytes allocated at the peak of one warm run, inputs and outputs included, weights not.

    `torch_eager` is the allocator's peak less what it held before the inputs were there and less
    `torch_kept_workspace`: what libraries keep between runs once warm. `torch_graph` is what the private pool
    of a captured graph reserves, plus the inputs. `torch_compile` is the allocator's peak as for eager calls,
    by `torch.compile` in its default mode, which keeps no pool. Float32 with TF32 off; cuDNN chooses by its
    heuristics.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    names = program.module.input_names
    arrays = random_inputs(names, [array_type(p.tensor) for p in program.module.main.params], seed=1)
    cuda = torch.cuda
    with torch.no_grad():
        torch.zeros(1, device="cuda")
        run = program.function(torch, "cuda")
        cuda.synchronize()
        weights = cuda.memory_allocated()
        # Integers are indices: 0 and 1 lie within every table.
        inputs = [torch.from_numpy(a % 2 if a.dtype.kind in "iu" else a).cuda() for a in arrays]
        input_bytes = cuda.memory_allocated() - weights
        eager, kept = _peak_and_kept(cuda, run, inputs, weights + input_bytes)
        pool = _graph_pool_bytes(torch, run, inputs)
        compiled = _compiled_peak(torch, program, inputs)
    cuda.empty_cache()
    return {
        "torch": torch.__version__,
        "device": cuda.get_device_name(),
        "torch_eager": eager + input_bytes,
        "torch_kept_workspace": kept,
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


def _compiled_peak(torch: Any, program: TorchProgram, inputs: list[Any]) -> int:
    """Bytes that a warm run of the compiled network allocates, its outputs included."""
    module = torch_module(program.module, attention=True).to("cuda")
    run = torch.compile(module, dynamic=False)
    peak, _ = _peak_and_kept(torch.cuda, run, inputs, 0)
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
