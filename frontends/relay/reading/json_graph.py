"""The node graph of TVM's JSON (`tvm.ir.save_json` up to 0.19, a text's metadata), read with suspicion.

Everything a node says is checked where it is used: kinds, indices, ranges, and that no node contains itself.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from tilewright.frontends.weights.files import Reader, read_ndarray
from tilewright.ir.errors import InputError

_MAX_KEY = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_STRINGS = frozenset(
    {"runtime.String", "StringImm", "tir.StringImm", "SourceName", "relay.SourceName", "relay.Id"}
)


def parse_json(text: str, file: str) -> dict[str, Any]:
    """The JSON object in `text`; raises InputError for anything else, however deep or large its numbers."""
    try:
        document = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(document, ensure_ascii=False).encode()  # half of a pair is no character of a name
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise InputError(f"expected text, got {half!a}, which is no character", where=file) from None
    except json.JSONDecodeError as error:
        where = f"{file}:{error.lineno}:{error.colno}"
        raise InputError(f"expected JSON, got a fault: {error.msg}", where=where) from None
    except RecursionError:
        raise InputError("expected JSON nested at most a few levels, got it far deeper", where=file) from None
    except ValueError as error:
        raise InputError(f"expected JSON, got a fault: {str(error)[:120]}", where=file) from None
    if not isinstance(document, dict):
        raise InputError(f"expected a JSON object, got {type(document).__name__}", where=file)
    return document


class JsonGraph:
    """Checked access to nodes, their fields, strings, numbers and arrays."""

    def __init__(self, document: Mapping[str, Any], file: str) -> None:
        self.file = file
        if "root_index" in document:
            raise InputError(
                "expected the JSON of TVM 0.19 or older, got that of TVM 0.25 or newer, which has no Relay",
                where=file,
            )
        nodes, arrays = document.get("nodes"), document.get("b64ndarrays", [])
        if not isinstance(nodes, list) or not isinstance(arrays, list):
            raise InputError(
                "expected lists 'nodes' and 'b64ndarrays' as tvm.ir.save_json writes them", where=file
            )
        self.nodes: list[Any] = nodes
        self._encoded: list[Any] = arrays
        self._arrays: dict[int, np.ndarray] = {}
        #: nodes being read at the moment
        self.active: set[int] = set()
        attrs = document.get("attrs", {})
        version = attrs.get("tvm_version", "") if isinstance(attrs, dict) else ""
        self.version = version if isinstance(version, str) else ""
        self.root = self.index(document.get("root"), -1)

    def is_older_than(self, major: int, minor: int) -> bool:
        """Return whether a TVM before this version wrote the file; False where the file does not say."""
        numbers = re.match(r"(\d{1,6})\.(\d{1,6})", self.version, re.ASCII)
        return numbers is not None and (int(numbers[1]), int(numbers[2])) < (major, minor)

    def error(self, message: str, node: int) -> InputError:
        """An error that names the node."""
        return InputError(message, where=f"{self.file}, node {node}" if node >= 0 else self.file)

    def index(self, value: object, node: int) -> int:
        """`value` as the number of a node; `node` is the one that holds it."""
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
            value = int(value)
        if type(value) is not int or not 0 <= value < len(self.nodes):
            raise self.error(
                f"expected the number of one of {len(self.nodes)} nodes, got {_short(value)}", node
            )
        return value

    def kind(self, node: int) -> str:
        """The type key without a leading `relay.`; empty for null."""
        entry = self.nodes[node]
        key = entry.get("type_key") if isinstance(entry, dict) else None
        if not isinstance(key, str) or len(key) > _MAX_KEY:
            raise self.error("expected a node with a 'type_key'", node)
        return key.removeprefix("relay.")

    def fields(self, node: int) -> Mapping[str, object]:
        """Field name -> stored value (a string in a good file)."""
        self.kind(node)
        fields = self.nodes[node].get("attrs", {})
        if not isinstance(fields, dict):
            raise self.error("expected an object 'attrs'", node)
        return cast(Mapping[str, object], fields)

    def literal(self, node: int, name: str) -> str:
        """A field's stored string."""
        value = self.fields(node).get(name)
        if not isinstance(value, str):
            raise self.error(f"expected a string field '{name}', got {_short(value)}", node)
        return value

    def child(self, node: int, name: str) -> int:
        """The node a field refers to; 0 (null) where the field is absent."""
        value = self.fields(node).get(name)
        return 0 if value is None else self.index(value, node)

    def text(self, node: int, name: str) -> str:
        """A string field, stored in place or as a string node."""
        value = self.literal(node, name)
        if value.isascii() and value.isdigit() and len(value) < 12 and int(value) < len(self.nodes):
            target = int(value)
            if self.kind(target) == "runtime.String":
                return self.string(target)
        return value

    def string(self, node: int) -> str:
        """The content of a string node, or the name of a node that has one."""
        entry = self.nodes[node]
        kind = self.kind(node)
        if isinstance(entry.get("repr_str"), str):
            return cast(str, entry["repr_str"])
        if isinstance(entry.get("repr_b64"), str):
            raw = self._base64(entry["repr_b64"], node)
            if len(raw) >= 8 and struct.unpack("<Q", raw[:8])[0] == len(raw) - 8:
                return raw[8:].decode("utf-8", "replace")
        elif kind == "runtime.String":
            return ""
        elif kind.endswith("StringImm"):
            return self.text(node, "value")
        elif "name_hint" in self.fields(node):
            return self.text(node, "name_hint")
        raise self.error("expected a string", node)

    def integer(self, text: str, node: int) -> int:
        """A decimal integer of at most 64 bits."""
        if len(text) > 20 or not text.removeprefix("-").isdigit() or not text.isascii():
            raise self.error(f"expected an integer of 64 bits, got {_short(text)}", node)
        value = int(text)
        if not -(2**63) <= value < 2**63:
            raise self.error(f"expected an integer of 64 bits, got {text}", node)
        return value

    def real(self, text: str, node: int) -> float:
        """A floating-point number."""
        try:
            return float(text) if len(text) < 64 else float("x")
        except ValueError:
            raise self.error(f"expected a number, got {_short(text)}", node) from None

    def items(self, node: int) -> tuple[int, ...]:
        """Node numbers in an Array, or keys and values in turn in a Map; null counts as empty."""
        if not self.kind(node):
            return ()
        data = self.nodes[node].get("data", [])
        if not isinstance(data, list):
            raise self.error("expected a list 'data'", node)
        return tuple(self.index(i, node) for i in data)

    def pairs(self, node: int) -> list[tuple[str, int]]:
        """String keys (or GlobalVar names) and values of a Map."""
        values = self.items(node)
        keys = self.nodes[node].get("keys") if values else None
        if keys is not None:
            if (
                not isinstance(keys, list)
                or not all(isinstance(k, str) for k in keys)
                or len(keys) != len(values)
            ):
                raise self.error("expected one string key for each value", node)
            return list(zip(keys, values, strict=True))
        if len(values) % 2:
            raise self.error(f"expected keys and values in turn, got {len(values)} entries", node)
        return [(self.string(k), v) for k, v in zip(values[::2], values[1::2], strict=True)]

    def array(self, number: str, node: int) -> np.ndarray:
        """Tensor `number` of the file."""
        index = self.integer(number, node)
        if not 0 <= index < len(self._encoded) or not isinstance(self._encoded[index], str):
            raise self.error(f"expected one of {len(self._encoded)} stored tensors, got number {index}", node)
        if index not in self._arrays:
            raw = self._base64(self._encoded[index], node)
            self._arrays[index] = read_ndarray(Reader(raw, f"{self.file}, tensor {index}"))
        return self._arrays[index]

    def _base64(self, text: str, node: int) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise self.error("expected base64 data", node) from None

    @contextmanager
    def entered(self, node: int) -> Iterator[None]:
        """Marks a node as being read; raises InputError when it already is, so that it contains itself."""
        if node in self.active:
            raise self.error("expected a graph without cycles, got a node that contains itself", node)
        self.active.add(node)
        try:
            yield
        finally:
            self.active.discard(node)


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."
