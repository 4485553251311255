"""An ONNX model as frozen Python nodes: the only module that takes protobuf messages apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontends.importing.emitter import Absent
from tilewright.frontends.onnx.package import onnx_module
from tilewright.frontends.onnx.tensors import element_name, read_tensor, text
from tilewright.ir.errors import InputError


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute inside a function that stands for the attribute `name` of the call."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Attribute:
    """A value (int, float, str, tuple of them, array, Absent, Graph or Reference) and its message."""

    value: Any
    proto: Any = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One node; an empty name among the inputs or outputs is one left out."""

    op: str
    domain: str
    name: str
    overload: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A graph input: element type by ONNX's name; a dimension is an extent, a symbol or None (unknown).

    shape: None where the file does not even say the rank.
    kind: `tensor`, or what else the file says (`sequence`, ...); an optional tensor counts as given.
    """

    name: str
    kind: str
    element: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A graph with the constants it brings; `declared` are its outputs as the file types them."""

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    declared: tuple[Input, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray | Absent]


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function: domain, name and overload; attributes with defaults (None: none); its operator versions."""

    key: tuple[str, str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute | None]
    nodes: tuple[Node, ...]
    opsets: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A whole model. `file` names it in messages."""

    file: str
    graph: Graph
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Function]


class Reader:
    """Reads the messages of one model; external data lies in `folder`."""

    def __init__(self, file: str, folder: Path | None = None) -> None:
        self._file = file
        self._folder = folder

    def model(self, proto: Any) -> Model:
        """The model of a ModelProto."""
        functions = [self.function(f) for f in proto.functions]
        return Model(
            self._file,
            self.graph(proto.graph),
            opsets_of(proto.opset_import),
            {f.key: f for f in functions},
        )

    def graph(self, proto: Any) -> Graph:
        """The graph of a GraphProto; raises InputError where two values have one name."""
        self._check_names(proto)
        constants = {text(t.name): read_tensor(t, self._folder, self._file) for t in proto.initializer}
        for sparse in proto.sparse_initializer:
            constants[text(sparse.values.name)] = _dense(sparse, self._file)
        return Graph(
            text(proto.name),
            tuple(_input(i) for i in proto.input),
            tuple(text(o.name) for o in proto.output),
            tuple(_input(o) for o in proto.output),
            tuple(self.node(n) for n in proto.node),
            constants,
        )

    def _check_names(self, proto: Any) -> None:
        """Values have names of their own, but for an input and the initialiser that is its default."""
        inputs = [text(i.name) for i in proto.input]
        initialisers = [text(t.name) for t in proto.initializer]
        initialisers += [text(s.values.name) for s in proto.sparse_initializer]
        made = [name for n in proto.node for name in map(text, n.output) if name]
        if "" in inputs:
            raise InputError("expected a name of every graph input, got an empty one", where=self._file)
        kinds = {"graph input": inputs, "initialiser": initialisers, "output of a node": made}
        for kind, names in kinds.items():
            repeated = [name for name, count in Counter(names).items() if count > 1]
            if repeated:
                raise InputError(
                    f"expected values of different names, got more than one {kind} '{repeated[0]}'",
                    where=self._file,
                )
        for kind, names in (("a graph input", inputs), ("an initialiser", initialisers)):
            both = sorted(set(names) & set(made))
            if both:
                raise InputError(
                    f"expected values of different names, got {kind} and an output of a node '{both[0]}'",
                    where=self._file,
                )

    def function(self, proto: Any) -> Function:
        """The function of a FunctionProto."""
        attrs: dict[str, Attribute | None] = dict.fromkeys(map(text, proto.attribute))
        attrs.update({text(a.name): Attribute(self.value(a), a) for a in proto.attribute_proto})
        return Function(
            (plain(text(proto.domain)), text(proto.name), text(proto.overload)),
            tuple(map(text, proto.input)),
            tuple(map(text, proto.output)),
            attrs,
            tuple(self.node(n) for n in proto.node),
            opsets_of(proto.opset_import),
        )

    def node(self, proto: Any) -> Node:
        """The node of a NodeProto."""
        attrs = {text(a.name): Attribute(self.value(a), a) for a in proto.attribute}
        return Node(
            text(proto.op_type), plain(text(proto.domain)), text(proto.name), text(proto.overload),
            tuple(map(text, proto.input)), tuple(map(text, proto.output)), attrs,
        )  # fmt: skip

    def value(self, proto: Any) -> Any:
        """The value of an AttributeProto; raises InputError for one without a type."""
        if proto.ref_attr_name:
            return Reference(text(proto.ref_attr_name))
        kinds = onnx_module().AttributeProto
        kind = kinds.AttributeType.Name(proto.type)
        match kind:
            case "INT":
                return int(proto.i)
            case "FLOAT":
                return float(proto.f)
            case "STRING":
                return _string(proto.s)
            case "INTS":
                return tuple(map(int, proto.ints))
            case "FLOATS":
                return tuple(map(float, proto.floats))
            case "STRINGS":
                return tuple(map(_string, proto.strings))
            case "TENSOR":
                return read_tensor(proto.t, self._folder, self._file)
            case "SPARSE_TENSOR":
                return _dense(proto.sparse_tensor, self._file)
            case "GRAPH":
                return self.graph(proto.g)
        return Absent(f"attribute '{proto.name}' of type {kind}")


def plain(domain: str) -> str:
    """The domain of an operator; ONNX's own is the empty one."""
    return "" if domain == "ai.onnx" else domain


def opsets_of(imports: Sequence[Any]) -> dict[str, int]:
    """Operator versions by domain."""
    return {plain(text(o.domain)): int(o.version) for o in imports}


def _string(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _input(proto: Any) -> Input:
    holder = proto.type
    if holder.HasField("optional_type"):
        holder = holder.optional_type.elem_type
    kind = holder.WhichOneof("value") or "value of no type"
    if kind != "tensor_type":
        return Input(text(proto.name), kind.removesuffix("_type"), "", None)
    tensor = holder.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(_dimension(d) for d in tensor.shape.dim)
    return Input(text(proto.name), "tensor", element_name(tensor.elem_type), shape)


def _dimension(proto: Any) -> int | str | None:
    kind = proto.WhichOneof("value")
    if kind == "dim_value" and proto.dim_value >= 0:
        return int(proto.dim_value)
    symbol = text(proto.dim_param) if kind == "dim_param" else ""
    # several dimensions called '?' are not one: exporters write such marks where they have no name
    return symbol if symbol != "None" and any(map(str.isalpha, symbol)) else None


def _dense(proto: Any, file: str) -> np.ndarray | Absent:
    """The dense array of a SparseTensorProto: places are flat indices or one row of indices per element."""
    values, places = (read_tensor(t, None, file) for t in (proto.values, proto.indices))
    if isinstance(values, Absent) or isinstance(places, Absent):
        return Absent(f"sparse tensor '{proto.values.name}'")
    shape = tuple(proto.dims)
    out = np.zeros(shape, values.dtype)
    flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), shape, mode="clip")
    if flat.size != values.size or (flat.size and not 0 <= flat.min() <= flat.max() < out.size):
        raise InputError(f"expected one place within {shape} per value of a sparse tensor", where=file)
    out.reshape(-1)[flat] = values
    return out
