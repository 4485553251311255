"""Passes: the decorator that registers them, pipelines as data, instruments, the driver of rewrites."""

from tilewright.ir.nodes import Func, Level, Module
from tilewright.passes.context import Instrument, PassContext, Step
from tilewright.passes.definition import Pass, PassDef, register_pass
from tilewright.passes.invariants import find_invariant, invariant_names, register_invariant
from tilewright.passes.options import OptionDef
from tilewright.passes.pipeline import Pipeline
from tilewright.passes.registry import find_pass, pass_defs, scoped_registry
from tilewright.passes.runner import PassError, run_pipeline

__all__ = [
    "Func", "Instrument", "Level", "Module", "OptionDef", "Pass", "PassContext", "PassDef", "PassError",
    "Pipeline", "Step", "find_invariant", "find_pass", "invariant_names", "pass_defs", "register_invariant",
    "register_pass", "run_pipeline", "scoped_registry",
]  # fmt: skip
