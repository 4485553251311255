"""The default pipelines as data: text that is parsed, printed, hashed into cache keys and order-checked."""

from __future__ import annotations

from tilewright.ir import Level

#: Relay-level clean-up and algebra on the graph
GRAPH = """
infer-shapes,
fold-batch-norm,
fold-scale-axis,
fold-constants,
cse,
dce
"""

#: graph ops to tensor ops
GRAPH_TO_TENSOR = "graph-to-tensor"

#: tensor ops to kernels with chosen parameters
TENSOR = """
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

#: the pass of TENSOR that needs the final parameters
PACKING = "pack-weights"

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
VECTORISE = {"cuda": "{max_bytes=16}", "opencl": "{max_bytes=64, registers=true}"}


def stage_texts(start: Level, language: str) -> dict[str, str]:
    """The pipeline of each stage (graph, tensor, thread) for a module whose @main is at level `start`."""
    thread = THREAD.replace("{VECTORISE}", VECTORISE[language])
    if start is Level.GRAPH:
        stages = {"graph": GRAPH, "tensor": f"{GRAPH_TO_TENSOR}, {TENSOR}", "thread": thread}
    else:
        stages = {"graph": "", "tensor": TENSOR, "thread": thread}
    return {k: " ".join(v.split()) for k, v in stages.items()}


def pipeline_text(level: str, language: str = "opencl") -> str:
    """The whole pipeline from the graph level down to `level` (graph, tensor or thread) as one line."""
    names = ("graph", "tensor", "thread")
    stages = stage_texts(Level.GRAPH, language)
    return ", ".join(stages[n] for n in names[: names.index(level) + 1])
