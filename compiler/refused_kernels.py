"""Kernels that ptxas compiles badly are refused: the next parameters by the model take their place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.compilation.kernel_builds import SerialisedKernels
from tilewright.compilation.lowering import Lowered, build
from tilewright.costmodel import Hardware
from tilewright.ir import Func, Module
from tilewright.passes.kernels.decision import text_of
from tilewright.runtime.plan.execution_plan import ExecutionPlan

#: changes of a module whose kernels have parameters
Choose = Callable[[Module], Module]
#: parameters of one kernel that are refused, at most
MOST_REFUSED = 8


class RefusedKernels:
    """Parameters of kernels that were refused, and the choice of others.

    facts: of each, in order, `kernel`, `params` and `reason`, as reports have them.
    """

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._texts: dict[str, list[str]] = {}
        self.facts: list[dict[str, Any]] = []

    def refuse(self, module: Module, reasons: Mapping[str, str]) -> None:
        """Refuse the parameters that kernels have in a tensor-level module, with a warning for each.

        reasons: by the names of kernels. Raises SerialisedKernels for one that has no others left.
        """
        funcs = {f.name: f for f in module.funcs}
        for name, reason in reasons.items():
            kernel = funcs[name]
            self._texts.setdefault(name, []).append(text_of(kernel))
            if len(self._texts[name]) > MOST_REFUSED or self._next(kernel) is None:
                raise SerialisedKernels({name: reason})
            self.facts.append({"kernel": name, "params": text_of(kernel), "reason": reason})
            warnings.warn(
                f"kernel {name!r} with {text_of(kernel)} is refused, because its multiplications would wait "
                f"for one another: {reason}; it gets the next parameters by the model",
                RuntimeWarning,
                stacklevel=2,
            )

    def choose(self, module: Module) -> Module:
        """The module whose kernels have no parameters that were refused for them."""
        return module.with_funcs(
            tuple(self._next(f) or f if f.name in self._texts else f for f in module.funcs)
        )

    def _next(self, kernel: Func) -> Func | None:
        """The kernel with parameters of the least estimate of those left; None where there are none."""
        from tilewright.tuning.kernels.search_space import search_space  # slow to load, and seldom needed

        refused = self._texts[kernel.name]
        if text_of(kernel) not in refused:
            return kernel
        space = search_space(kernel, self._hardware)
        if space is None:
            return None
        points = (space.variant(int(i)) for i in space.estimates_s.argsort(kind="stable"))
        return next((f for f in points if text_of(f) not in refused), None)


def built(
    lower: Callable[[Choose | None], Lowered],
    hardware: Hardware,
    choose: Choose | None,
    *,
    progress: bool | None = None,
) -> tuple[Lowered, ExecutionPlan, RefusedKernels]:
    """A lowered module, its plan as `build` makes it without places, and what was refused on the way.

    lower: lowers the network with a choice of parameters, `choose` where nothing is refused. It is called
    again after kernels were refused: their parameters may decide how weights are packed and what is
    prefetched. Raises SerialisedKernels for a kernel of which nothing is left.
    """
    refused = RefusedKernels(hardware)
    while True:
        lowered = lower(_both(choose, refused.choose) if refused.facts else choose)
        try:
            return lowered, build(lowered, progress=progress, placed=False), refused
        except SerialisedKernels as found:
            refused.refuse(lowered.tensor, found.reasons)


def _both(first: Choose | None, second: Choose) -> Choose:
    return second if first is None else lambda module: second(first(module))
