"""What the attributes of a decision on a kernel may hold: keys, types and least values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir import Pairs


class Kind(ABC):
    """What one attribute may be."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """In words, with an article."""

    @abstractmethod
    def fits(self, value: object) -> bool:
        """Whether a value is of this kind."""

    def faults(self, value: object, name: str) -> Iterator[str]:
        """What is wrong with a value, one sentence each; `name` says where it stands."""
        if not self.fits(value):
            yield f"expected {name} to be {self.expected}, got {value!r}"


@dataclass(frozen=True)
class Whole(Kind):
    """An integer."""

    least: int = 1

    @property
    def expected(self) -> str:
        return f"an integer of at least {self.least}"

    def fits(self, value: object) -> bool:
        return type(value) is int and value >= self.least


class Number(Kind):
    """An integer or a floating-point number."""

    expected = "a number"

    def fits(self, value: object) -> bool:
        return type(value) in (int, float)


class Flag(Kind):
    """A truth value."""

    expected = "true or false"

    def fits(self, value: object) -> bool:
        return type(value) is bool


class Text(Kind):
    """Any text."""

    expected = "a text"

    def fits(self, value: object) -> bool:
        return isinstance(value, str)


@dataclass(frozen=True)
class OneOf(Kind):
    """One of a few texts."""

    values: tuple[str, ...]

    @property
    def expected(self) -> str:
        return f"one of {', '.join(self.values)}"

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and value in self.values


class Sizes(Kind):
    """An integer of at least 1 for each of some dimensions, whose names are the kernel's own."""

    expected = "an integer of at least 1 per dimension"

    def fits(self, value: object) -> bool:
        return isinstance(value, Pairs) and all(Whole().fits(n) for _, n in value.items)


@dataclass(frozen=True)
class Either(Kind):
    """One kind or the other."""

    first: Kind
    second: Kind

    @property
    def expected(self) -> str:
        return f"{self.first.expected}, or {self.second.expected}"

    def fits(self, value: object) -> bool:
        return self.first.fits(value) or self.second.fits(value)


@dataclass(frozen=True)
class Fields(Kind):
    """Pairs with all the `required` keys and some of the `optional` ones, and no others."""

    required: Mapping[str, Kind]
    optional: Mapping[str, Kind]

    @property
    def expected(self) -> str:
        return f"pairs with {', '.join(self.required)}"

    def fits(self, value: object) -> bool:
        return not any(self.faults(value, ""))

    def faults(self, value: object, name: str) -> Iterator[str]:
        if not isinstance(value, Pairs):
            yield f"expected {name} to be {self.expected}, got {value!r}"
            return
        known = {**self.required, **self.optional}
        given = value.as_dict()
        yield from (f"expected '{key}' in {name}" for key in self.required if key not in given)
        for key, found in given.items():
            if key not in known:
                yield f"expected {', '.join(known)} in {name}, got '{key}'"
            else:
                yield from known[key].faults(found, f"{key} in {name}")


def whole_numbers(*names: str) -> Fields:
    """Pairs that give an integer of at least 1 for each of these names."""
    return Fields(dict.fromkeys(names, Whole()), {})
