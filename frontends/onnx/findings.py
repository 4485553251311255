"""Everything in a model that cannot be imported, collected while the rest is imported."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tilewright.frontends.occurrences import Occurrences
from tilewright.frontends.onnx.emission import NotConstant
from tilewright.ir.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Poison:
    """A value that could not be made because of something found earlier."""


@dataclass
class Findings:
    """What was found, by kind and name, with the first place and the inputs that would have to be known."""

    operators: Occurrences = field(default_factory=Occurrences)
    faults: Occurrences = field(default_factory=Occurrences)
    inputs: list[str] = field(default_factory=list)

    def add_operator(self, name: str, place: str) -> None:
        """An operator without a rule."""
        self.operators.add(name, place)

    def add_fault(self, error: UnsupportedError, op: str, place: str) -> None:
        """A node whose operator is known and that asks for what this version does not do."""
        self.faults.add(f"{op}: {error}", place)
        if isinstance(error, NotConstant):
            self.inputs += [name for name in error.inputs if name not in self.inputs]

    def message(self) -> str:
        """All of it in one sentence; empty where nothing was found."""
        parts = []
        if self.operators:
            parts.append(f"operators this version does not import: {self.operators.listed()}")
        if self.faults:
            parts.append(f"not imported: {self.faults.listed()}")
        return "; ".join(parts)

    def error(self, file: str, choices: Collection[str]) -> UnsupportedError:
        """One error that lists all; `choices` are the inputs that a caller may want to fix to a value."""
        if not self.inputs:
            return UnsupportedError(self.message(), where=file)
        message = self.message()
        if fixed := [name for name in self.inputs if name in choices]:
            options = " ".join(f"--constant {name}=..." for name in fixed)
            python = ", ".join(f"{name!r}: ..." for name in fixed)
            message += f"; {options} fixes a value at import (in Python constants={{{python}}})"
        return NotConstant(message, self.inputs, where=file)
