"""The public functions that parse, show and verify a module, or one of the levels of what was compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ir import InputError, Module, VerifyError, parse
from tilewright.ir import show as show_module
from tilewright.passes.kernels import registry  # noqa: F401  (decisions on kernels can be parsed)
from tilewright.plan_text.reading import module_faults
from tilewright.plan_text.writing import plan_module

if TYPE_CHECKING:
    from tilewright.running.executable import Executable

__all__ = ["parse", "show", "verify"]


def show(shown: Module | Executable, *, locations: bool = True, level: str | None = None) -> str:
    """Text of a module, or of one level of what was compiled.

    locations: whether the text says where ops came from. level: of an executable, `graph`, `tensor`, `thread`
    or `plan` (the default): what the passes of that level left, or the plan that runs. A module is shown at
    the level it is at. Raises InputError for anything else.
    """
    if isinstance(shown, Module):
        if level is not None:
            raise InputError(f"expected no level with a Module, which has one, got {level!r:.60}")
        return show_module(shown, locations=locations)
    from tilewright.running.executable import LEVELS, Executable

    if not isinstance(shown, Executable):
        raise InputError(f"expected a Module or an Executable, got {type(shown).__name__}")
    if level in (None, "plan"):
        return show_module(plan_module(shown.plan), locations=locations)
    levels = [name for name in LEVELS if name in shown.artifact.texts]
    if level not in levels:
        raise InputError(f"expected a level among {', '.join([*levels, 'plan'])}, got {level!r:.60}")
    if locations:
        return shown.artifact.texts[level]
    return show_module(shown.artifact.module(level), locations=False)


def verify(module: Module) -> None:
    """Raise VerifyError with all faults of a module of any level, or return.

    A plan also passes the checks that devices rely on: ranges, references, sizes, and that every order its
    dependencies allow gives the same data.
    """
    faults = module_faults(module)
    if faults:
        raise VerifyError(faults)
