"""Records of the kernels of a compilation: to plan with, and as facts for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tilewright.ir import Attr, Func, Level, Module, Pairs
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.kernels.registry import is_generated


@dataclass(frozen=True)
class KernelRecord:
    """A kernel with its parameters, what the cost model says of it (seconds) and what was measured.

    origins: the ops of the network that it computes, each once. template, params, cost: None where nothing
    was chosen or estimated. grid, block: blocks, and threads of a block.
    """

    name: str
    origins: tuple[str, ...]
    template: str | None
    grid: tuple[int, ...]
    block: int
    params: Mapping[str, Any] | None
    cost: Mapping[str, Any] | None
    measured_s: float | None

    @staticmethod
    def of(f: Func) -> KernelRecord:
        """The record of a kernel function at the tensor or the thread level."""
        decision = decision_of(f)
        params, cost = (None, None) if decision is None else (decision.parameters, decision.cost)
        return KernelRecord(
            f.name,
            tuple(dict.fromkeys(op.loc for op in f.body.ops if op.loc)),
            None if decision is None else decision.template,
            cast("tuple[int, ...]", f.get("grid", (1, 1, 1))),  # a library makes its own grid
            cast("int", f.get("block", 1)),
            None if params is None else plain(params.pairs()),
            None if cost is None else plain(cost.pairs()),
            None if decision is None else decision.measured_s,
        )

    @staticmethod
    def read(facts: Mapping[str, Any]) -> KernelRecord:
        """The record that these facts of a checked report came from.

        Older facts have no origins, and call the template a skeleton.
        """
        return KernelRecord(
            name=facts["name"],
            origins=tuple(facts.get("origins", ())),
            template=facts["template"] if "template" in facts else facts["skeleton"],
            grid=tuple(facts["grid"]),
            block=facts["block"],
            params=facts["params"],
            cost=facts["cost"],
            measured_s=facts["measured_s"],
        )

    def facts(self) -> dict[str, Any]:
        """Plain data for reports and files."""
        return {**vars(self), "origins": list(self.origins), "grid": list(self.grid)}

    @property
    def seconds(self) -> float:
        """Seconds of one launch: measured where it was, else estimated; 0 where neither is known."""
        return self.measured_s or self._known("estimate_s") or 0.0

    @property
    def bound_s(self) -> float:
        """The least that a launch can take; 0 where it is not known."""
        return self._known("bound_s") or 0.0

    @property
    def limit(self) -> str | None:
        """The resource that sets the bound; None where it is not known."""
        return None if self.cost is None else self.cost.get("limit")

    def _known(self, name: str) -> float | None:
        return None if self.cost is None else self.cost.get(name)


def kernel_records(thread: Module) -> tuple[KernelRecord, ...]:
    """The records of all kernels of a module at the thread level, those of libraries included."""
    return tuple(KernelRecord.of(f) for f in thread.funcs if f.level is Level.THREAD or not is_generated(f))


def plain(a: Attr) -> Any:
    """An attribute as dicts, lists, numbers and texts."""
    if isinstance(a, Pairs):
        return {k: plain(v) for k, v in a.items}
    return list(map(plain, a)) if isinstance(a, tuple) else a
