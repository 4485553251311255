"""PyTorch's peak memory beyond the weights for one network, eager and captured in a CUDA graph."""

from __future__ import annotations

from typing import Any

from tilewright.commands.network import random_inputs
from tilewright.ir.types import array_type
from tilewright.tools.torch_program import TorchProgram


def torch_peaks(program: TorchProgram) -> dict[str, Any]:
    """Bytes allocated at the peak of one warm run, inputs and outputs included, weights not.

    `torch_eager` is the allocator's peak less what it held before the inputs were there and less
    `torch_kept_workspace`: what libraries keep between runs once warm. `torch_graph` is what the private pool
    of a captured graph reserves, plus the inputs. Float32 with TF32 off; cuDNN chooses by its heuristics.
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
        for _ in range(3):
            run(*inputs)
        cuda.synchronize()
        kept = cuda.memory_allocated() - weights - input_bytes
        cuda.reset_peak_memory_stats()
        outputs = run(*inputs)
        cuda.synchronize()
        eager = cuda.max_memory_allocated() - weights - kept
        del outputs
        pool = _graph_pool_bytes(torch, run, inputs)
    cuda.empty_cache()
    return {
        "torch": torch.__version__,
        "device": cuda.get_device_name(),
        "torch_eager": eager,
        "torch_kept_workspace": kept,
        "torch_graph": pool + input_bytes,
    }


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
