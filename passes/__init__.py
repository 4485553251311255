"""Passes: the decorator that registers them, pipelines as data, instruments, the driver of rewrites."""

from tilewright.ir.nodes import Func, Level, Module
from tilewright.passes.framework.bisection import first_bad_pass, prefixes
from tilewright.passes.framework.context import Instrument, Pass, PassContext, PassDef, Step
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.framework.instruments import (
    DumpFolder,
    PrintAfter,
    PrintDiff,
    Statistics,
    Timing,
    diff,
)
from tilewright.passes.framework.invariants import find_invariant, invariant_names, register_invariant
from tilewright.passes.framework.options import OptionDef
from tilewright.passes.framework.pipeline import Pipeline
from tilewright.passes.framework.registry import find_pass, pass_defs, scoped_registry
from tilewright.passes.framework.reproducer import read_header, read_reproducer, write_reproducer
from tilewright.passes.framework.runner import PassError, run_pipeline
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, pattern, rewrite_func, rewrite_module
from tilewright.passes.rewriting.values import producers, replace_values, use_counts

__all__ = [
    "DumpFolder", "Func", "Instrument", "Level", "Module", "OptionDef", "Pass", "PassContext", "PassDef",
    "PassError", "Pattern", "Pipeline", "PrintAfter", "PrintDiff", "Rewriter", "Statistics", "Step",
    "Timing", "diff", "find_invariant", "find_pass", "first_bad_pass", "invariant_names", "pass_defs",
    "pattern", "prefixes", "producers", "read_header", "read_reproducer", "register_invariant",
    "register_pass", "replace_values", "rewrite_func", "rewrite_module", "run_pipeline",
    "scoped_registry", "use_counts", "write_reproducer",
]  # fmt: skip
