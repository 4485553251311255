"""The table of emitters: one small function per op, open to third parties, closed to duplicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Op

if TYPE_CHECKING:
    from tilewright.codegen.emit.emission import Emission

Emit = Callable[["Emission", Op], None]


@dataclass(frozen=True)
class Emitter:
    """How one op becomes C text; `writes` are the positions of the operands (buffers) it stores to."""

    op: str
    emit: Emit
    writes: tuple[int, ...] = ()


_EMITTERS: dict[str, Emitter] = {}


def emitter(*ops: str, writes: tuple[int, ...] = ()) -> Callable[[Emit], Emit]:
    """Register a function as the emitter of `ops`; a second one for an op raises ValueError naming both."""

    def register(emit: Emit) -> Emit:
        for op in ops:
            known = _EMITTERS.get(op)
            if known is not None:
                raise ValueError(f"op '{op}' has two emitters: {_origin(known.emit)} and {_origin(emit)}")
            _EMITTERS[op] = Emitter(op, emit, writes)
        return emit

    return register


def emitter_of(op: Op) -> Emitter:
    """The emitter of an op; raises UnsupportedError where there is none."""
    found = _EMITTERS.get(op.name)
    if found is None:
        raise UnsupportedError(f"no code can be generated for {op.name}", where=op.loc)
    return found


def emitted_ops() -> tuple[str, ...]:
    """Names of all ops that have an emitter, sorted."""
    return tuple(sorted(_EMITTERS))


def _origin(emit: Emit) -> str:
    return f"{emit.__module__}.{emit.__qualname__}"
