"""The way in: an ONNX file, its bytes or a `ModelProto`, to our graph level."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright.frontends.importing.emitter import Absent, Result, flatten
from tilewright.frontends.importing.network import network
from tilewright.frontends.importing.rules import gathered
from tilewright.frontends.onnx import rules, syntax
from tilewright.frontends.onnx.binding import Binding, Shapes, bind
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.evaluate import Evaluator
from tilewright.frontends.onnx.node import Poison, Rules
from tilewright.frontends.onnx.package import onnx_module
from tilewright.frontends.onnx.tensors import DTYPES, text
from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.errors import InputError, UnsupportedError, file_path
from tilewright.ir.nodes import Module, Value

#: Files larger than this are refused unread; larger models keep their weights in files of their own.
MAX_FILE_BYTES = 1 << 31
#: The oldest version of ONNX's operators; broadcasting followed other rules before.
OLDEST_OPSET = 7
#: The newest version whose node tests pass (see docs/conformance.md); a later one may mean other things.
NEWEST_OPSET = 28
#: An input of more elements is data: errors do not offer to fix it to a value.
MAX_FIXED = 16


class ImportNote(UserWarning):
    """A thing that an import took for granted, or took although the file contradicts itself without harm."""


def load(
    model: str | Path | bytes | Any, shapes: Shapes | None = None, constants: Mapping[str, Any] | None = None
) -> Module:
    """The graph-level module of an ONNX model: a path, the bytes of a file, or a `ModelProto`.

    shapes: static shapes by input name, and extents by the name of a symbolic dimension. A batch that stays
        open is 1, which an `ImportNote` says, as of declared shapes of results that are others.
    constants: numbers or arrays by input name, for inputs that are to be fixed (a sampling rate, a shape, a
        trip count); they are inputs of the module no more.
    Raises InputError (unreadable or contradictory model, unknown shapes) and UnsupportedError, which lists
    all operators and uses of operators that cannot be imported, at once.
    """
    proto, file, folder = _proto(model)
    proto = _modern(proto, file)
    read = syntax.Reader(file, folder).model(proto)
    binding = bind(read, shapes, constants)
    module, notes = import_model(read, binding)
    for note in notes:
        warnings.warn(f"{file}: {note}", ImportNote, stacklevel=2)
    return module


@cache
def _rules() -> Rules:
    """ONNX's operators: what each emits for every version of it; those of other domains as `domain.Op`."""
    return gathered(rules)


def import_model(model: syntax.Model, binding: Binding) -> tuple[Module, tuple[str, ...]]:
    """Our module for a model that has been read, its inputs bound; and what to tell of the import."""
    if not model.graph.outputs:
        raise InputError("expected a graph with an output, got none", where=model.file)
    inputs: dict[str, Value] = {name: Value(kind, hint=name) for name, kind in binding.inputs.items()}
    emitter = FoldingEmitter((*model.graph.constants, *inputs), tuple(inputs.values()))
    arguments = {
        **inputs,
        **{name: emitter.constant(array, name) for name, array in binding.constants.items()},
    }
    evaluator = Evaluator(model, _rules(), emitter)
    try:
        results = evaluator.graph(model.graph, arguments, model.opsets)
    except InputError as error:
        if error.where.startswith(model.file):
            raise
        raise type(error)(str(error), where=model.file) from None
    if any(isinstance(r, Poison) for r in results):
        choices = [name for name, t in binding.inputs.items() if t.size <= MAX_FIXED]
        raise evaluator.error(choices)
    outputs = []
    notes = [binding.assumed]
    for declared, result in zip(model.graph.declared, results, strict=True):
        values = _tensors(result, declared.name, model)
        notes.append(_contradiction(declared, values, model))
        outputs += values
    file = model.file if "." in model.file else model.graph.name
    return network(emitter, file, inputs, outputs, prune=True), tuple(filter(None, notes))


def _tensors(result: Result, name: str, model: syntax.Model) -> list[Value]:
    """The tensors of one output: those of a sequence in order."""
    leaves = flatten(result)
    for leaf in leaves:
        if not isinstance(leaf, Value):
            got = leaf.what if isinstance(leaf, Absent) else "nothing"
            raise UnsupportedError(f"expected output '{name}' to hold tensors, got {got}", where=model.file)
    return leaves


def _contradiction(declared: syntax.Input, values: Sequence[Value], model: syntax.Model) -> str:
    """A sentence on a contradiction to the shape that the file declares for an output; empty without one.

    Raises InputError for another element type. Shapes are told and no more: trained networks are about whose
    declarations are wrong, and other runtimes take them. Extents are compared where the file gives every
    extent of its inputs: otherwise exporters write those of the batch they traced with.
    """
    dtype = DTYPES.get(declared.element)
    if declared.kind != "tensor" or dtype is None or len(values) != 1:
        return ""
    t = values[0].tensor
    shape = "" if declared.shape is None else f"[{', '.join(map(str, declared.shape))}]"
    sentence = f"the file declares output '{declared.name}' as {dtype}{shape}, but its value is {t}"
    if dtype != t.dtype:
        raise InputError(sentence, where=model.file)
    if declared.shape is None:
        return ""
    fits = len(declared.shape) == t.rank
    if fits and _is_static(model.graph):
        pairs = zip(declared.shape, t.shape, strict=True)
        fits = all(not isinstance(said, int) or said == got for said, got in pairs)
    return "" if fits else sentence


def _is_static(graph: syntax.Graph) -> bool:
    """Return whether the file gives the extents of all inputs that have no default."""
    shapes = [i.shape for i in graph.inputs if i.name not in graph.constants]
    return all(shape is not None and all(isinstance(n, int) for n in shape) for shape in shapes)


def _proto(model: str | Path | bytes | Any) -> tuple[Any, str, Path | None]:
    """The ModelProto, what to call it in messages, and the folder of its external data."""
    onnx = onnx_module()
    if isinstance(model, onnx.ModelProto):
        return model, text(model.graph.name) or "model", None
    if isinstance(model, bytes):
        return _parsed(model, "model"), "model", None
    if not isinstance(model, str | Path):
        raise InputError(f"expected a path, bytes or an onnx.ModelProto, got {type(model).__name__}")
    file = file_path(model)
    return _parsed(read_bounded(file, MAX_FILE_BYTES, "model"), str(file)), str(file), file.parent


def _parsed(data: bytes, file: str) -> Any:
    proto = onnx_module().ModelProto()
    try:
        proto.ParseFromString(data)
    except import_module("google.protobuf.message").DecodeError as error:
        raise InputError(f"expected an ONNX model, got other bytes ({error})", where=file) from None
    if not proto.HasField("graph"):
        raise InputError("expected an ONNX model, got a message without a graph", where=file)
    return proto


def _modern(proto: Any, file: str) -> Any:
    """The model with operators of version 7 or newer, after ONNX's own conversion where they are older."""
    imports = (proto.opset_import, *(f.opset_import for f in proto.functions))
    newest = max(syntax.opsets_of(i).get("", OLDEST_OPSET) for i in imports)
    if newest > NEWEST_OPSET:
        raise UnsupportedError(
            f"expected operators of versions {OLDEST_OPSET} to {NEWEST_OPSET}, got {newest}", where=file
        )
    version = syntax.opsets_of(proto.opset_import).get("", OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return proto
    converter = onnx_module("version_converter")
    inference = onnx_module("shape_inference")
    try:
        return converter.convert_version(_aligned(proto), OLDEST_OPSET)
    except (RuntimeError, ValueError, converter.ConvertError, inference.InferenceError) as error:
        raise UnsupportedError(
            f"expected operators of version {OLDEST_OPSET} or newer, got {version}, which ONNX does not "
            f"convert: {' '.join(str(error).split())}",
            where=file,
        ) from None


def _aligned(proto: Any) -> Any:
    """The model with operands of old broadcasts as many-dimensional as their partners, where ranks are known.

    Up to version 6 `axis` names the axis of the first operand at which the second one begins; ONNX's
    conversion takes it for the first axis.
    """
    onnx = onnx_module()
    proto = onnx_module("shape_inference").infer_shapes(proto)
    graph = proto.graph
    typed = (*graph.input, *graph.value_info)
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in typed if v.type.tensor_type.HasField("shape")}
    ranks |= {t.name: len(t.dims) for t in graph.initializer}
    nodes = []
    for number, node in enumerate(graph.node):
        axes = [a for a in node.attribute if a.name == "axis"]
        old = any(a.name == "broadcast" and a.i for a in node.attribute)
        if old and axes and len(node.input) == 2 and all(name in ranks for name in node.input):
            first, second = (ranks[name] for name in node.input)
            begin = axes[0].i + first if axes[0].i < 0 else axes[0].i
            if behind := list(range(second, first - begin)):
                spread = f"{node.input[1]}.aligned.{number}"
                nodes.append(onnx.helper.make_node("Unsqueeze", [node.input[1]], [spread], axes=behind))
                node.input[1] = spread
            node.attribute.remove(axes[0])
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return proto
