"""Functions that the ONNX standard gives for operators: the way in for operators without a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tilewright.frontends.importing.emitter import Absent, Result
from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.package import onnx_module
from tilewright.frontends.onnx.tensors import element_of_dtype
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value


def schema_function(
    node: syntax.Node, attrs: Mapping[str, syntax.Attribute], inputs: Sequence[Result], opset: int
) -> syntax.Function | None:
    """The standard's function for this node, None where it has none for these operands."""
    defs = onnx_module("defs")
    if not defs.has(node.op, domain=node.domain):
        return None
    try:
        schema = defs.get_schema(node.op, opset, node.domain)
    except onnx_module("onnx_cpp2py_export.defs").SchemaError:
        return None
    if schema.has_function:
        return _plain_function(node.op, node.domain, schema.since_version, opset)
    if not schema.has_context_dependent_function or not all(
        v is None or isinstance(v, Value) for v in inputs
    ):
        return None
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions:
        return None
    kinds = [_type_proto(v).SerializeToString() for v in inputs]
    text = schema.get_context_dependent_function_with_opset_version(
        max(versions), _message(node, attrs).SerializeToString(), kinds
    )
    return _read(text, schema, node.op) if text else None


@lru_cache(maxsize=4096)
def _operand_counts(op: str, domain: str, opset: int) -> tuple[int, int, int, str] | None:
    """Fewest and most inputs, most outputs, and the status of an operator; None for an unknown one."""
    defs = onnx_module("defs")
    if not defs.has(op, domain=domain):
        return None
    try:
        schema = defs.get_schema(op, opset, domain)
    except onnx_module("onnx_cpp2py_export.defs").SchemaError:
        raise InputError(f"expected an operator of version {opset}, which has no {op}") from None
    return schema.min_input, schema.max_input, schema.max_output, "deprecated" * schema.deprecated


def check_counts(node: syntax.Node, inputs: Sequence[Result], opset: int) -> None:
    """Raise InputError where a node has more or fewer inputs or outputs than its operator."""
    counts = _operand_counts(node.op, node.domain, opset)
    if counts is None:
        return
    least, most, outputs, deprecated = counts
    if deprecated:
        raise InputError(f"expected an operator of version {opset}, in which {node.op} is deprecated")
    if not least <= len(inputs) <= most:
        raise InputError(f"expected from {least} to {most} inputs, got {len(inputs)}")
    if len(node.outputs) > outputs:
        raise InputError(f"expected at most {outputs} outputs, got {len(node.outputs)}")


@lru_cache(maxsize=256)
def _plain_function(op: str, domain: str, since: int, opset: int) -> syntax.Function | None:
    """The function that does not depend on operands, in the newest form that `opset` knows."""
    schema = onnx_module("defs").get_schema(op, opset, domain)
    versions = schema.function_opset_versions
    # a function brings its own operator versions, so that one of a later version serves as well
    best = max((v for v in versions if v <= opset), default=min(versions, default=0))
    return _read(schema.get_function_with_opset_version(best), schema, op) if best else None


def _read(text: bytes, schema: Any, op: str) -> syntax.Function:
    message = onnx_module().FunctionProto()
    message.ParseFromString(text)
    reader = syntax.Reader(f"the function of {op}")
    function = reader.function(message)
    attrs = dict(function.attrs)
    for name, attr in schema.attributes.items():
        default = attr.default_value if attr.default_value.name else None
        attrs[name] = syntax.Attribute(reader.value(default), default) if default is not None else None
    return syntax.Function(
        function.key, function.inputs, function.outputs, attrs, function.nodes, function.opsets
    )


def _type_proto(value: Result) -> Any:
    onnx = onnx_module()
    if not isinstance(value, Value):
        assert value is None or isinstance(value, Absent)
        return onnx.TypeProto()
    t = value.tensor
    return onnx.helper.make_tensor_type_proto(element_of_dtype(t.dtype), t.shape)


def _message(node: syntax.Node, attrs: Mapping[str, syntax.Attribute]) -> Any:
    """The node's message with resolved attributes."""
    message = onnx_module().NodeProto(
        op_type=node.op, domain=node.domain, input=node.inputs, output=node.outputs
    )
    for name, attr in attrs.items():
        copy = message.attribute.add()
        copy.CopyFrom(attr.proto)
        copy.name = name
    return message
