"""Attributes that are frozen dataclasses, whose fields are printed, parsed and checked by their types.

A class of attributes makes itself known to the parser by name, `kernel<template: "map", ...>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Attr, Pairs, TypedAttr

_Attrs = tuple[tuple[str, Attr], ...]
_READERS: dict[str, Callable[[Pairs], TypedAttr]] = {}
_UPGRADES: list[Callable[[_Attrs], _Attrs]] = []


def register_attribute(name: str, read: Callable[[Pairs], TypedAttr]) -> None:
    """Let the parser read `name<...>` by this function, which raises InputError for what does not fit."""
    _READERS[name] = read


def register_upgrade(upgrade: Callable[[_Attrs], _Attrs]) -> None:
    """Let the parser pass the attributes of every function through this, which renews those of older text."""
    _UPGRADES.append(upgrade)


def read_attribute(name: str, pairs: Pairs) -> TypedAttr:
    """The attribute `name<pairs>`; raises InputError where no class has this name, or pairs do not fit it."""
    if name not in _READERS:
        expected = f"one of {', '.join(sorted(_READERS))}" if _READERS else "tilewright.passes to be imported"
        raise InputError(f"expected {expected} for an attribute of the form name<...>, got {name!r}")
    return _READERS[name](pairs)


def upgraded(attrs: _Attrs) -> _Attrs:
    """The attributes of a function, those of older text renewed; raises InputError for what does not fit."""
    for upgrade in _UPGRADES:
        attrs = upgrade(attrs)
    return attrs


class Sizes(Mapping[str, int]):
    """An integer of at least 1 for each of some dimensions, in order; it can be hashed."""

    __slots__ = ("_sizes",)

    def __init__(self, sizes: Mapping[str, int] = {}) -> None:
        self._sizes = dict(sizes)

    def __getitem__(self, dimension: str) -> int:
        return self._sizes[dimension]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __hash__(self) -> int:
        return hash(frozenset(self._sizes.items()))

    def __repr__(self) -> str:
        return f"Sizes({self._sizes})"


@dataclass(frozen=True)
class AttrRecord:
    """Base of frozen dataclasses whose fields are the schema of an attribute.

    Fields are integers (of at least `least` in their metadata, 1 by default), floats, truth values, texts,
    Literals of texts, Sizes, other records, and unions of these.
    """

    def pairs(self) -> Pairs:
        """The fields by name, in their order; those that have their defaults are left out."""
        values = ((f, getattr(self, f.name)) for f in fields(self))
        return Pairs(tuple((f.name, _attr(v)) for f, v in values if not _is_default(f, v)))

    @classmethod
    def read(cls, value: Attr, name: str) -> Self:
        """The record of some pairs; raises InputError, which calls them `name`, for the first misfit."""
        if not isinstance(value, Pairs):
            required = ", ".join(f.name for f in fields(cls) if not _has_default(f))
            raise InputError(f"expected {name} to be pairs with {required}, got {value!r}")
        known, values, hints = {f.name: f for f in fields(cls)}, value.as_dict(), get_type_hints(cls)
        for key in values:
            if key not in known:
                raise InputError(f"expected {', '.join(known)} in {name}, got '{key}'")
        for key, f in known.items():
            if key not in values and not _has_default(f):
                raise InputError(f"expected '{key}' in {name}")
        read = {
            key: _read(hints[key], v, f"{key} in {name}", known[key].metadata.get("least", 1))
            for key, v in values.items()
        }
        return cls(**read)


def _has_default(f: Field[Any]) -> bool:
    return f.default is not MISSING or f.default_factory is not MISSING


def _is_default(f: Field[Any], value: object) -> bool:
    if f.default_factory is not MISSING:
        return bool(value == f.default_factory())
    return f.default is not MISSING and value == f.default


def _attr(value: Any) -> Attr:
    if isinstance(value, AttrRecord):
        return value.pairs()
    if isinstance(value, Sizes):
        return Pairs(tuple(value.items()))
    return tuple(map(_attr, value)) if isinstance(value, tuple) else value


def _read(kind: Any, value: Attr, name: str, least: int) -> Any:
    """A value of this type; raises InputError where it is none."""
    if isinstance(kind, type) and issubclass(kind, AttrRecord):
        return kind.read(value, name)
    alternatives = [k for k in get_args(kind) if k is not NoneType] if isinstance(kind, UnionType) else [kind]
    for alternative in alternatives:
        if _fits(alternative, value, least):
            return Sizes(value.as_dict()) if isinstance(value, Pairs) else value  # type: ignore[arg-type]
    expected = ", or ".join(_in_words(k, least) for k in alternatives)
    raise InputError(f"expected {name} to be {expected}, got {value!r}")


def _fits(kind: Any, value: Attr, least: int) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is Sizes:
        return isinstance(value, Pairs) and all(type(n) is int and n >= 1 for _, n in value.items)
    if kind is int:
        return type(value) is int and value >= least
    return type(value) in (int, float) if kind is float else type(value) is kind


def _in_words(kind: Any, least: int) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    words = {
        int: f"an integer of at least {least}",
        float: "a number",
        bool: "true or false",
        str: "a text",
        Sizes: "an integer of at least 1 per dimension",
    }
    return words[kind]
