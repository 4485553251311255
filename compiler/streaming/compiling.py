"""Compile a network whose weights do not fit into device memory: steps, plans, and a store of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.compilation.lowering import pass_context
from tilewright.devices.targets import Target, resolve_target
from tilewright.ir import Constants, InputError, Module, UnsupportedError
from tilewright.passes import run_pipeline
from tilewright.passes.pipelines import GRAPH
from tilewright.runtime.storage.source import IoOptions
from tilewright.streaming.executable import StreamedExecutable, StreamOptions
from tilewright.streaming.memory_size import memory_bytes
from tilewright.streaming.opening import check_direct, check_streaming
from tilewright.streaming.parts.line import Line
from tilewright.streaming.step_planning import plan_steps
from tilewright.streaming.step_plans import StepCompiler
from tilewright.streaming.store_file import StoreFolder, write_store
from tilewright.streaming.training_compiling import compile_step
from tilewright.streaming.training_executable import StreamedStep


def compile(
    module: Module,
    target: str = "auto",
    *,
    memory_cap: int | str,
    folder: str | Path | None = None,
    host_memory: int | str | None = None,
    io: IoOptions | None = None,
    gpudirect: bool = False,
    schedule: str = "auto",
    resume: bool = False,
    **options: Any,
) -> StreamedExecutable | StreamedStep:
    """Compile a graph-level module to run with at most `memory_cap` of device memory.

    The network is cut into steps whose weights, twice (one step computes while the next is fetched), fit
    under the cap together with what the kernels need and with the values between steps. Weights, as the
    compiled kernels need them, are written to storage; one step's weights are in host memory at a time where
    the module makes its constants when they are read (as GPT-style networks of the zoo do).

    memory_cap: bytes, or a text such as `2GiB`. folder: where the weights are written (`weights.store`) and
    values of micro-batches may wait; by default a temporary folder, removed by `close()`. host_memory: for
    values of micro-batches between steps, beyond which they go to storage. io: how storage is read.
    gpudirect: storage writes straight into the memory of an NVIDIA GPU, by the package kvikio; checksums are
    not compared then.
    A training step (a module with state) gives a `StreamedStep`: its weights and optimizer state lie in
    `folder`, which keeps the state of every step that ended. schedule: `pr`, `ar` or `auto`, of a training
    step. resume: go on with the state that the folder holds, after whatever ended the run that wrote it.
    options: those of `tilewright.compile`.

    Raises InputError for bad arguments; WorkError where the cap is too small, naming one that would do, and
    where the weights cannot be written.
    """
    if not isinstance(module, Module):
        raise InputError(f"expected a Module, got {type(module).__name__}")
    if module.state_names:
        if gpudirect:
            raise UnsupportedError("gpudirect is for networks without state", where=f"@{module.name}")
        return compile_step(
            module,
            target,
            memory_cap=memory_cap,
            folder=folder,
            host_memory=host_memory,
            io=io,
            schedule=schedule,
            resume=resume,
            options=options,
        )
    if resume or schedule != "auto":
        raise InputError("expected resume and schedule with a training step; this network has no state")
    return compile_network(
        module,
        target,
        memory_cap=memory_cap,
        folder=folder,
        host_memory=host_memory,
        io=io,
        gpudirect=gpudirect,
        **options,
    )


def compile_network(
    module: Module,
    target: str = "auto",
    *,
    memory_cap: int | str,
    folder: str | Path | None = None,
    host_memory: int | str | None = None,
    io: IoOptions | None = None,
    gpudirect: bool = False,
    **options: Any,
) -> StreamedExecutable:
    """`compile` of a network without state; raises UnsupportedError for one that has state."""
    if module.state_names:
        raise UnsupportedError(
            f"expected a network without state; this one updates '{module.state_names[0]}'",
            where=f"@{module.name}",
        )
    cap = memory_bytes(memory_cap)
    host = None if host_memory is None else memory_bytes(host_memory, where="host_memory")
    resolved = resolve_target(target)
    check_streaming(resolved.kind)
    if gpudirect:
        check_direct(resolved.kind)
    place = StoreFolder(folder)
    try:
        compiler = StepCompiler(resolved, options)
        planned, window = plan_steps(Line.of(_prepared(module, resolved)), cap, compiler)
        write_store(place.store, planned, compiler)
        run = StreamOptions(cap, host, io or IoOptions(), gpudirect)
        return StreamedExecutable(planned, window, str(resolved), place, run)
    except BaseException:
        place.close()
        raise


def _prepared(module: Module, target: Target) -> Module:
    """Graph-level algebra before cutting, so that no cut keeps ops from being folded.

    Constants that are made when they are read stay unmade: such networks are only cut.
    """
    if type(module.constants) is not Constants:
        return module
    missing = [
        str(op["name"])
        for op in module.main.body.ops
        if op.name == "graph.constant" and op["name"] not in module.constants
    ]
    if missing:
        raise InputError(
            f"{len(missing)} constants have no data: {', '.join(missing[:5])}", where=f"@{module.name}"
        )
    return run_pipeline(module, GRAPH, pass_context(target))
