"""The default pipelines as data: text that is parsed, printed, hashed into cache keys and order-checked."""

from __future__ import annotations

#: Relay-level clean-up and algebra on the graph
GRAPH = """
infer-shapes,
fold-batch-norm,
fold-constants,
cse,
dce
"""

#: graph to tensor ops, then tensor ops to kernels
TENSOR = """
graph-to-tensor,
forward-copies,
cse,
dce,
fuse-kernels,
merge-dims,
share-kernels,
choose-parameters,
pack-weights,
dce
"""

#: kernels to what one thread does
THREAD = """
tensor-to-thread,
simplify-thread,
vectorise{VECTORISE},
simplify-thread,
thread-dce,
place-barriers
"""

#: options of `vectorise` per kernel language: a CPU vectorises arithmetic, a GPU only memory accesses
VECTORISE = {"cuda": "{max_bytes=16}", "opencl": "{max_bytes=64}"}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def pipeline_text(level: str, language: str = "opencl") -> str:
    """The pipeline up to `level` (graph, tensor or thread) for a kernel language, as one line."""
    parts = {"graph": (GRAPH,), "tensor": (GRAPH, TENSOR), "thread": (GRAPH, TENSOR, THREAD)}[level]
    return _one_line(", ".join(p.strip() for p in parts)).replace("{VECTORISE}", VECTORISE[language])
