"""Everything in a model that cannot be imported, collected while the rest is imported."""

from __future__ import annotations

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

    def error(self, file: str) -> UnsupportedError:
        """One error that lists all."""
        parts = []
        if self.operators:
            parts.append(f"operators this version does not import: {self.operators.listed()}")
        if self.faults:
            parts.append(f"not imported: {self.faults.listed()}")
        message = "; ".join(parts)
        return (
            NotConstant(message, self.inputs, where=file)
            if self.inputs
            else UnsupportedError(message, where=file)
        )
