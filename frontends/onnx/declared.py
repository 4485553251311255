"""What an ONNX file says of its outputs, compared with what was computed."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.tensors import DTYPES
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value


def check_declared(declared: syntax.Input, values: Sequence[Value], model: syntax.Model) -> None:
    """Raise InputError where the type that the file declares for an output is not that of its value.

    Element types and ranks must agree. Extents must where the file gives every extent of its inputs:
    otherwise exporters write those of the batch they traced with.
    """
    wanted = DTYPES.get(declared.element)
    if declared.kind != "tensor" or wanted is None or len(values) != 1:
        return
    t = values[0].tensor
    fits = wanted == t.dtype
    if declared.shape is not None:
        fits = fits and len(declared.shape) == t.rank
        if fits and _is_static(model.graph):
            pairs = zip(declared.shape, t.shape, strict=True)
            fits = all(not isinstance(said, int) or said == got for said, got in pairs)
    if not fits:
        shape = "" if declared.shape is None else list(declared.shape)
        raise InputError(
            f"the file declares output '{declared.name}' as {wanted}{shape}, but its value is {t}",
            where=model.file,
        )


def _is_static(graph: syntax.Graph) -> bool:
    """Whether the file gives the extents of all inputs that have no default."""
    shapes = [i.shape for i in graph.inputs if i.name not in graph.constants]
    return all(shape is not None and all(isinstance(n, int) for n in shape) for shape in shapes)
