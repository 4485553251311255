"""JSON from untrusted files: bounded size, no duplicate keys, no odd numbers, typed access to objects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

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
