"""Everything in a model that cannot be imported, collected while the rest is imported."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.frontends.onnx.emission import NotConstant
from tilewright.ir.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Poison:
    """A value that could not be made because of something found earlier."""


@dataclass
class _Finding:
    count: int = 0
    first: str = ""


@dataclass
class Findings:
    """What was found, by kind and name, with the first place and the inputs that would have to be known."""

    operators: dict[str, _Finding] = field(default_factory=dict)
    faults: dict[str, _Finding] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)

    def add_operator(self, name: str, place: str) -> None:
        """An operator without a rule."""
        self.operators.setdefault(name, _Finding(0, place)).count += 1

    def add_fault(self, error: UnsupportedError, op: str, place: str) -> None:
        """A node whose operator is known and that asks for what this version does not do."""
        self.faults.setdefault(f"{op}: {error}", _Finding(0, place)).count += 1
        if isinstance(error, NotConstant):
            self.inputs += [name for name in error.inputs if name not in self.inputs]

    def error(self, file: str) -> UnsupportedError:
        """One error that lists all."""
        parts = []
        if self.operators:
            parts.append(f"operators this version does not import: {_listed(self.operators)}")
        if self.faults:
            parts.append(f"not imported: {_listed(self.faults)}")
        message = "; ".join(parts)
        return (
            NotConstant(message, self.inputs, where=file)
            if self.inputs
            else UnsupportedError(message, where=file)
        )


def _listed(found: dict[str, _Finding]) -> str:
    return ", ".join(
        f"{name} ({f.count} time{'s' if f.count > 1 else ''}, first at {f.first})"
        for name, f in sorted(found.items())
    )
