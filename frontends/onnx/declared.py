"""What an ONNX file says of its outputs, compared with what was computed."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.tensors import DTYPES
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value


def check_declared(declared: syntax.Input, values: Sequence[Value], model: syntax.Model) -> str:
    """What contradicts the shape that the file declares for an output; empty where nothing does.

    Raises InputError for another element type. Shapes are told and no more: trained networks are about whose
    declarations are wrong, and other runtimes take them. Extents are compared where the file gives every
    extent of its inputs: otherwise exporters write those of the batch they traced with.
    """
    wanted = DTYPES.get(declared.element)
    if declared.kind != "tensor" or wanted is None or len(values) != 1:
        return ""
    t = values[0].tensor
    shape = "" if declared.shape is None else f"[{', '.join(map(str, declared.shape))}]"
    told = f"the file declares output '{declared.name}' as {wanted}{shape}, but its value is {t}"
    if wanted != t.dtype:
        raise InputError(told, where=model.file)
    if declared.shape is None:
        return ""
    fits = len(declared.shape) == t.rank
    if fits and _is_static(model.graph):
        pairs = zip(declared.shape, t.shape, strict=True)
        fits = all(not isinstance(said, int) or said == got for said, got in pairs)
    return "" if fits else told


def _is_static(graph: syntax.Graph) -> bool:
    """Whether the file gives the extents of all inputs that have no default."""
    shapes = [i.shape for i in graph.inputs if i.name not in graph.constants]
    return all(shape is not None and all(isinstance(n, int) for n in shape) for shape in shapes)
