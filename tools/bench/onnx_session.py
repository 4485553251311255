"""ONNX Runtime as a peer on the CPU: the graph that PyTorch runs, exported by PyTorch."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any


def onnx_session(torch: Any, module: Any, inputs: Sequence[Any], threads: int) -> Callable[[], list[Any]]:
    """A function that runs the exported `module` on `inputs`; its results are tensors that nothing copied.

    threads: that one operator may use. Raises what the exporter and ONNX Runtime raise.
    """
    import onnxruntime

    file = io.BytesIO()
    names = [f"x{number}" for number in range(len(inputs))]
    torch.onnx.export(module, tuple(inputs), file, input_names=names, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    given = {x.name for x in session.get_inputs()}
    # An input that the graph does not use is not exported.
    feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True) if name in given}
    return lambda: [torch.from_numpy(y) for y in session.run(None, feed)]
