"""JSON from untrusted files: bounded size, no duplicate keys, no odd numbers, typed access to objects."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from tilewright.runtime.errors import InputError

T = TypeVar("T")

MAX_JSON_CHARS = 32 << 20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def load_strict_json(text: str, what: str) -> Any:
    """Parse JSON; anything odd is a `InputError` that starts with `what`."""
    if len(text) > MAX_JSON_CHARS:
        raise InputError(f"{what}: expected at most {MAX_JSON_CHARS} characters, got {len(text)}")
    try:
        found = json.loads(
            text, parse_constant=_refuse_constant, parse_int=_bounded_int, object_pairs_hook=_unique_keys
        )
        if _SURROGATE.search(text):
            _refuse_halves(found)
        return found
    except ValueError as error:
        raise InputError(f"{what}: not JSON ({error})") from None
    except RecursionError:
        raise InputError(f"{what}: nested too deeply") from None


def _refuse_halves(found: Any) -> None:
    """Raise ValueError where a text holds half of a surrogate pair, which no file and no database takes."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a text holds {error.object[error.start]!a}, which is no character") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of a plan")


def _bounded_int(digits: str) -> int:
    # Python parses integers in quadratic time: refuse those no field can hold before they cost anything.
    if len(digits) > 20:
        raise ValueError("an integer has more than 20 digits")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


class JsonFields:
    """Typed access to one JSON object with exactly the expected keys."""

    def __init__(self, data: Any, where: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        if not isinstance(data, dict):
            raise InputError(f"{where}: expected an object, got {type(data).__name__}")
        missing = [key for key in keys if key not in data]
        extra = [key for key in data if key not in keys and key not in optional]
        if missing or extra:
            fault = f"misses {missing[0]!r}" if missing else f"has the unknown key {extra[0]!r:.100}"
            raise InputError(f"{where}: {fault}")
        self.data = data
        self.where = where

    def _typed(self, key: str, kind: type) -> Any:
        value = self.data[key]
        if type(value) is not kind:
            raise InputError(
                f"{self.where}: expected {key} to be of type {kind.__name__}, got {type(value).__name__}"
            )
        return value

    def text(self, key: str) -> str:
        return str(self._typed(key, str))

    def integer(self, key: str) -> int:
        return int(self._typed(key, int))

    def flag(self, key: str) -> bool:
        return bool(self._typed(key, bool))

    def mapping(self, key: str) -> dict[str, Any]:
        return dict(self._typed(key, dict))

    def _list_of(self, key: str, kind: type) -> tuple[Any, ...]:
        values = self._typed(key, list)
        wrong = [type(value).__name__ for value in values if type(value) is not kind]
        if wrong:
            raise InputError(f"{self.where}: expected {key} to hold {kind.__name__} only, got {wrong[0]}")
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        return self._list_of(key, str)

    def integers(self, key: str) -> tuple[int, ...]:
        return self._list_of(key, int)

    def each(self, key: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        values = self._typed(key, list)
        return tuple(read(value, f"{self.where}.{key}[{index}]") for index, value in enumerate(values))


def read_dataclass(kind: type[T], data: Any, where: str, optional: tuple[str, ...] = ()) -> T:
    """An object of a dataclass from a JSON object of its fields; those that may be None may be left out.

    optional: further fields that may be left out, which have a default, as those whose metadata say
    `optional`. Fields are of types int, str, bool, float, Literal, dataclasses, tuples of these, or None
    besides. Raises `InputError` for anything else than these types say; `where` names the place.
    """
    types = _types_of(kind)  # type: ignore[arg-type]  # a class is hashable
    late = _optional(kind)  # type: ignore[arg-type]  # a class is hashable
    optional = (*optional, *late, *(name for name, t in types.items() if NoneType in get_args(t)))
    fields = JsonFields(data, where, tuple(name for name in types if name not in optional), optional)
    values = {n: _value(t, data[n], n, where) for n, t in types.items() if n in fields.data}
    return kind(**values)


@cache
def _optional(kind: type) -> tuple[str, ...]:
    """Fields that files of earlier versions lack."""
    return tuple(f.name for f in dataclasses.fields(kind) if f.metadata.get("optional"))


@cache
def _types_of(kind: type) -> Mapping[str, Any]:
    """Types of the fields by name."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _value(kind: Any, value: Any, name: str, where: str) -> Any:
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        kind = str
    elif NoneType in arguments:
        (inner,) = (t for t in arguments if t is not NoneType)
        return None if value is None else _value(inner, value, name, where)
    elif get_origin(kind) is tuple:
        if type(value) is not list:
            raise InputError(f"{where}: expected {name} to be of type list, got {type(value).__name__}")
        if arguments[-1] is Ellipsis:
            return tuple(_value(arguments[0], v, f"{name}[{i}]", where) for i, v in enumerate(value))
        if len(value) != len(arguments):
            raise InputError(f"{where}: expected {name} to hold {len(arguments)} values, got {len(value)}")
        return tuple(_value(t, v, name, where) for t, v in zip(arguments, value, strict=True))
    elif dataclasses.is_dataclass(kind):
        return read_dataclass(kind, value, f"{where}.{name}")  # type: ignore[arg-type]  # a class, no object
    if type(value) is not kind:
        got = type(value).__name__
        raise InputError(f"{where}: expected {name} to be of type {kind.__name__}, got {got}")
    return value
