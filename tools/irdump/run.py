"""What `irdump` does with a module: picks the passes, runs them under instruments, writes the outputs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tilewright.api import compile
from tilewright.codegen import KernelSource
from tilewright.compilation.kernel_builds import emit_kernels
from tilewright.devices.targets import Target, resolve_target
from tilewright.ir import InputError, Level, Module, show
from tilewright.levels import verify
from tilewright.passes import DumpFolder, Instrument, PassContext, Pipeline, PrintAfter, PrintDiff, Timing
from tilewright.passes import run_pipeline as run_passes
from tilewright.passes.pipelines import official_stages
from tilewright.plan_text.writing import plan_module
from tilewright.runtime.atomic_file import atomic_file
from tilewright.tools.irdump.arguments import LOWERING
from tilewright.tools.irdump.input import Source, read_source_file
from tilewright.tools.irdump.page import LastStep, page
from tilewright.tools.irdump.record import Recorder, op_count

_DEFAULT_TARGET = "opencl"


def run(arguments: argparse.Namespace) -> None:
    """Read, run the passes, write the outputs. Raises InputError and WorkError; outputs are written last."""
    inputs = arguments.inputs.split(",") if arguments.inputs is not None else None
    source = read_source_file(
        arguments.file, arguments.params, inputs, arguments.seed, arguments.shape, arguments.constant
    )
    try:
        verify(source.module)
    except InputError as e:
        raise InputError(str(e), where=source.name) from None
    target = resolve_target(arguments.target or source.header.get("target") or _DEFAULT_TARGET)
    pipeline = _pipeline(arguments, source, target)
    recorder, timing = Recorder(source.module), Timing()
    instruments = [recorder, timing, *_printers(arguments, pipeline)]
    context = PassContext(str(target), target.hardware, tuple(instruments), arguments.verify_each)
    planned = arguments.level == "plan" and source.module.main.level is not Level.PLAN
    module = (
        _plan(arguments, source, target, instruments)
        if planned
        else run_passes(source.module, pipeline, context)
    )
    text = show(module, locations=not arguments.no_locations)
    last = None
    if planned:
        plain = show(module, locations=False)
        last = LastStep("plan", "What runs: kernels, streams, dependencies, memory", plain, op_count(module))
    elif arguments.level == "source":
        text = _emit(module, target, source.name)
        last = LastStep("source", "The emitted kernels", text, op_count(module))
    if arguments.html is not None:
        _write(arguments.html, page(source.name, str(target), recorder, last))
    if arguments.output is not None:
        _write(arguments.output, text)
    _report(arguments, source, pipeline, recorder, timing, text)


def _report(
    arguments: argparse.Namespace,
    source: Source,
    pipeline: Pipeline,
    recorder: Recorder,
    timing: Timing,
    text: str,
) -> None:
    if arguments.json:
        report = {"file": source.name, "pipeline": str(pipeline), "seconds": timing.seconds}
        print(json.dumps({**report, "passes": recorder.records()}, indent=2))
        return
    if arguments.timing:
        print(timing.report(), file=sys.stderr)
    if arguments.output is None and arguments.html is None:
        sys.stdout.write(text)


def _pipeline(arguments: argparse.Namespace, source: Source, target: Target) -> Pipeline:
    if arguments.pass_pipeline is not None:
        return Pipeline.parse(arguments.pass_pipeline, where="--pass-pipeline")
    by_default = arguments.html is not None and "pipeline" not in source.header
    if arguments.level is not None or by_default:
        level = arguments.level or "thread"
        choices = {name: getattr(arguments, name) for name in LOWERING}
        return official_to(source, level, target.language, **choices)
    for name in LOWERING:
        if name in arguments.given:
            raise InputError("it names its own passes, of which no option chooses", where=source.name)
    return Pipeline.parse(source.header.get("pipeline", ""), where=f"{source.name}: pipeline")


def official_to(source: Source, level: str, language: str, **choices: str) -> Pipeline:
    """The official passes that bring a module down to `level`; raises InputError when it is below already.

    choices: options of `official_stages`. A plan needs no pass below the thread level: see `_plan`.
    """
    levels = list(Level)
    lowest = max((levels.index(f.level) for f in source.module.funcs), default=0)
    wanted = levels.index(Level("thread" if level == "source" else level))
    if lowest > wanted:
        raise InputError(f"the module is at the {levels[lowest].value} level already", where=source.name)
    if lowest >= levels.index(Level.THREAD):
        return Pipeline()
    return official_stages(levels[lowest], language, **choices).down_to(levels[wanted]).whole


def _plan(
    arguments: argparse.Namespace, source: Source, target: Target, instruments: Sequence[Instrument]
) -> Module:
    """What `tilewright.compile` makes of a module, as a module of the plan level."""
    if target.kind == "reference":
        raise InputError("expected a target with kernels for --level plan, got reference, which interprets")
    choices = {name: getattr(arguments, name) for name in (*LOWERING, "streams")}
    checked = {"instruments": instruments, "verify_each": arguments.verify_each}
    try:
        executable = compile(source.module, str(target), **choices, **checked)
    except InputError as e:
        raise InputError(str(e), where="" if e.where else source.name) from e
    return plan_module(executable.plan)


def _printers(arguments: argparse.Namespace, pipeline: Pipeline) -> list[Instrument]:
    out: list[Instrument] = []
    for pattern in arguments.print_after:
        if not any(fnmatchcase(p.name, pattern) for p in pipeline):
            raise InputError(f"--print-after {pattern}: no pass of the pipeline has such a name")
    locations = not arguments.no_locations
    if arguments.print_after_all:
        out.append(PrintAfter(locations=locations))
    elif arguments.print_after:
        out.append(PrintAfter(*arguments.print_after, locations=locations))
    if arguments.diff:
        out.append(PrintDiff())
    if arguments.dump_dir is not None:
        out.append(DumpFolder(Path(arguments.dump_dir)))
    return out


def _emit(module: Module, target: Target, name: str) -> str:
    """The kernel source of every thread-level function."""
    sources = emit_kernels(module, target)
    if not sources:
        raise InputError("the module has no thread-level functions to emit", where=name)
    return "\n".join(_kernel_text(kernel, source) for kernel, source in sources.items())


def _kernel_text(name: str, source: KernelSource) -> str:
    grid = ", ".join(map(str, source.grid))
    return f"// kernel @{name}: grid [{grid}], block {source.block}\n{source.source.rstrip()}\n"


def _write(path: str, text: str) -> None:
    try:
        with atomic_file(Path(path)) as file:
            file.write(text.encode())
    except OSError as e:
        raise InputError(f"cannot write the output: {e.strerror or e}", where=path) from e
