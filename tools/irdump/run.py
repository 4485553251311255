"""The work of `irdump` on a module: it picks the passes, runs them under instruments, writes the outputs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tilewright.api import compile
from tilewright.codegen import KernelSource
from tilewright.compilation.kernel_builds import emit_kernels
from tilewright.devices.targets import Target, resolve_target
from tilewright.frontends import relay
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.ir import REQUIRED, InputError, Level, Module, OpDef, op_defs, parse, parse_file, show, walk
from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.modules.parser import MAX_BYTES, decode
from tilewright.ir.modules.printer import show_attr
from tilewright.levels import verify
from tilewright.passes import (
    DumpFolder,
    Instrument,
    PassContext,
    PassDef,
    Pipeline,
    PrintAfter,
    PrintDiff,
    Timing,
    pass_defs,
    read_header,
)
from tilewright.passes import run_pipeline as run_passes
from tilewright.passes.framework.options import OptionDef, show_option
from tilewright.passes.kernels.registry import check_decisions
from tilewright.passes.pipelines import official_stages
from tilewright.plan_text.writing import plan_module
from tilewright.running.executable import Executable
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.commands.network import BUNDLED, load_bundled, reject_constants, reject_shapes
from tilewright.tools.irdump.arguments import LOWERING
from tilewright.tools.irdump.page import LastStep, page
from tilewright.tools.irdump.record import Recorder, op_count

_DEFAULT_TARGET = "opencl"


def run(arguments: argparse.Namespace) -> None:
    """Read, run the passes, write the outputs. Raises InputError and WorkError; outputs are written last."""
    inputs = arguments.inputs.split(",") if arguments.inputs is not None else None
    source = read_source_file(
        arguments.file, arguments.params, inputs, arguments.seed, arguments.shape, arguments.constant,
        training=arguments.training_mode,
    )  # fmt: skip
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
    last = None
    if planned or _goes_to_the_plan(arguments, source, target):
        executable = _compiled(arguments, source, target, instruments)
        plan = plan_module(executable.plan)
        module = plan if planned else executable.artifact.module("thread")
        plain = show(plan, locations=False)
        last = LastStep("plan", "What runs: kernels, streams, dependencies, memory", plain, op_count(plan))
    else:
        module = run_passes(source.module, pipeline, context)
    text = show(module, locations=not arguments.no_locations)
    if arguments.level == "source":
        text = _emit(module, target, source.name)
        last = LastStep("source", "The emitted kernels", text, op_count(module))
    if arguments.html is not None:
        write_atomically(arguments.html, page(source.name, str(target), recorder, last), "the output")
    if arguments.output is not None:
        write_atomically(arguments.output, text, "the output")
    _report(arguments, source, pipeline, recorder, timing, text)


def _report(
    arguments: argparse.Namespace,
    source: IrSource,
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


def _pipeline(arguments: argparse.Namespace, source: IrSource, target: Target) -> Pipeline:
    if arguments.pass_pipeline is not None:
        return Pipeline.parse(arguments.pass_pipeline, where="--pass-pipeline")
    if arguments.level is not None or _by_default(arguments, source):
        level = arguments.level or "thread"
        choices = {name: getattr(arguments, name) for name in LOWERING}
        return official_to(source, level, target.language, **choices)
    for name in LOWERING:
        if name in arguments.given:
            raise InputError("it names its own passes, of which no option chooses", where=source.name)
    return Pipeline.parse(source.header.get("pipeline", ""), where=f"{source.name}: pipeline")


def _by_default(arguments: argparse.Namespace, source: IrSource) -> bool:
    """Return whether a page of the default passes is asked for, and no level."""
    named = arguments.pass_pipeline is not None or "pipeline" in source.header
    return arguments.html is not None and arguments.level is None and not named


def _goes_to_the_plan(arguments: argparse.Namespace, source: IrSource, target: Target) -> bool:
    """Return whether a page of the default passes can end with the plan: one can be compiled."""
    if not _by_default(arguments, source) or target.kind == "reference":
        return False
    if any(f.level is Level.PLAN for f in source.module.funcs):
        return False
    constants = (op for f in source.module.funcs for op in walk(f.body) if op.name == "graph.constant")
    named = [*(op["name"] for op in constants), *source.module.state_names]
    return all(name in source.module.constants for name in named)


def official_to(source: IrSource, level: str, language: str, **choices: str) -> Pipeline:
    """The official passes that bring a module down to `level`; raises InputError when it is below already.

    choices: options of `official_stages`. A plan needs no pass below the thread level: see `_compiled`.
    """
    levels = list(Level)
    lowest = max((levels.index(f.level) for f in source.module.funcs), default=0)
    last = levels.index(Level("thread" if level == "source" else level))
    if lowest > last:
        raise InputError(f"the module is at the {levels[lowest].value} level already", where=source.name)
    if lowest >= levels.index(Level.THREAD):
        return Pipeline()
    return official_stages(levels[lowest], language, **choices).down_to(levels[last]).whole


def _compiled(
    arguments: argparse.Namespace, source: IrSource, target: Target, instruments: Sequence[Instrument]
) -> Executable:
    """The executable that `tilewright.compile` makes of a module."""
    if target.kind == "reference":
        raise InputError("expected a target with kernels for --level plan, got reference, which interprets")
    choices = {name: getattr(arguments, name) for name in (*LOWERING, "streams")}
    checked = {"instruments": instruments, "verify_each": arguments.verify_each}
    try:
        return compile(source.module, target, **choices, **checked)
    except InputError as e:
        raise InputError(str(e), where="" if e.where else source.name) from e


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


_STDIN = "<stdin>"
_RELAY_SUFFIXES = {".relay", ".json", ".rly"}


@dataclass(frozen=True)
class IrSource:
    """A module, the name of where it came from, and what its head comments say (`pipeline`, `target`)."""

    module: Module
    name: str
    header: Mapping[str, str] = field(default_factory=dict)


def read_source_file(
    name: str,
    params: str | None = None,
    inputs: Sequence[str] | None = None,
    seed: int = 0,
    shapes: Sequence[str] = (),
    constants: Sequence[str] = (),
    *,
    training: bool = False,
) -> IrSource:
    """Read a file, or stdin for `-`. The kind of a file without a known suffix is found from its content.

    params, inputs, seed: as in `relay.load`; an error for what is no Relay. shapes, constants: `--shape` and
    `--constant` arguments, for ONNX files. training: `--training-mode`, for programs of torch.export. Raises
    InputError.
    """
    path = Path(name)
    if path.suffix in BUNDLED:
        if params is not None or inputs is not None:
            raise InputError("--params and --inputs are for Relay networks", where=name)
        return IrSource(load_bundled(path, shapes, constants, training=training), name)
    reject_shapes(shapes)
    reject_constants(constants)
    if training:
        raise InputError("expected a program of torch.export (.pt2)", where="--training-mode")
    text = _stream(path)
    if path.suffix in _RELAY_SUFFIXES or not _is_ours(path, text):
        return IrSource(_relay(path, text, params, inputs, seed), _shown(name))
    if params is not None or inputs is not None:
        raise InputError("--params and --inputs are for Relay networks, this is IR", where=name)
    if text is not None:
        return IrSource(
            _checked(parse(text, where=_shown(name)), _shown(name)), _shown(name), read_header(text)
        )
    return IrSource(_checked(parse_file(path), name), name, read_header(_head(path)))


def _checked(module: Module, name: str) -> Module:
    """The module, after its decisions on kernels were found to fit their templates; raises InputError."""
    check_decisions(module, name)
    return module


def _shown(name: str) -> str:
    return _STDIN if name == "-" else name


def _stream(path: Path) -> str | None:
    """Text of stdin or of a pipe, of bounded length; None for files and what does not exist."""
    if str(path) == "-":
        return decode(sys.stdin.buffer.read(MAX_BYTES + 1), _STDIN)
    if not path.exists() or path.is_file() or path.is_dir():
        return None
    return decode(read_bounded(path, MAX_BYTES, "file"), str(path))


def _is_ours(path: Path, text: str | None) -> bool:
    if path.suffix == ".ir":
        return True
    for line in (_head(path) if text is None else text).splitlines():
        stripped = line.strip()
        if stripped and (not stripped.startswith("#") or stripped.startswith("#[")):
            return stripped.startswith("module")
    return False


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(1 << 16).decode("utf-8", errors="replace").removeprefix("\ufeff")
    except OSError as e:
        raise InputError(f"cannot read the file: {e.strerror}", where=str(path)) from e


def _relay(
    path: Path, text: str | None, params: str | None, inputs: Sequence[str] | None, seed: int
) -> Module:
    if text is None:
        return relay.load(path, params, inputs, seed)
    return import_module(read_source(text, _shown(str(path))), params, inputs, seed)


def pass_list(*, as_json: bool = False) -> str:
    """All passes by name: levels, options with defaults, what they do."""
    records = [_pass(d) for d in pass_defs()]
    if as_json:
        return json.dumps(records, indent=2)
    return "\n".join(_pass_text(r) for r in records)


def _pass(d: PassDef[Any]) -> dict[str, Any]:
    return {
        "name": d.name,
        "levels": [x.value for x in d.levels],
        "to": d.to.value if d.to else None,
        "options": [_option(o) for o in d.options],
        "requires": sorted(d.requires),
        "establishes": sorted(d.establishes),
        "breaks": sorted(d.breaks),
        "summary": d.summary,
        "rewrite": d.rewrite,
        "origin": d.place,
    }


def _option(o: OptionDef) -> dict[str, Any]:
    return {"name": o.name, "default": o.default}


def _pass_text(r: dict[str, Any]) -> str:
    options = ", ".join(f"{o['name']}={show_option(o['default'])}" for o in r["options"])
    levels = ", ".join(r["levels"]) + (f" -> {r['to']}" if r["to"] else "")
    lines = [r["name"] + (f"{{{options}}}" if options else "") + f"  [{levels}]", f"    {r['summary']}"]
    lines += [f"    {k}: {', '.join(r[k])}" for k in ("requires", "establishes", "breaks") if r[k]]
    return "\n".join(lines)


def op_list(*, as_json: bool = False) -> str:
    """All ops by name: operands, attributes with kinds and defaults, effects, what they mean."""
    records = [_op(d) for d in op_defs()]
    if as_json:
        return json.dumps(records, indent=2)
    return "\n".join(_op_text(r) for r in records)


def _op(d: OpDef) -> dict[str, Any]:
    attrs = [
        {
            "name": name,
            "kind": a.kind,
            "required": a.default is REQUIRED,
            "default": None if a.default is REQUIRED else show_attr(a.default),
            "doc": a.doc,
        }
        for name, a in d.attrs.items()
    ]
    return {
        "name": d.name,
        "operands": list(d.operands),
        "attributes": attrs,
        "results": d.results,
        "body": d.body,
        "effects": sorted(d.effects),
        "doc": d.doc,
    }


def _op_text(r: dict[str, Any]) -> str:
    attrs = [f"{a['name']}: {a['kind']}" + ("" if a["required"] else f" = {a['default']}")
             for a in r["attributes"]]  # fmt: skip
    effects = f"  [{', '.join(r['effects'])}]" if r["effects"] else ""
    head = f"{r['name']}({', '.join([*('%' + n for n in r['operands']), *attrs])})"
    return f"{head}{' { ... }' if r['body'] else ''}{effects}\n    {' '.join(r['doc'].split())}"
