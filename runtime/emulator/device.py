"""The emulator device: CUDA C built for the CPU, one fiber per CUDA thread, in a process of its own.

The builder of the text is handed in (see `KernelBuilder`). A fault of a kernel (an access outside of a
buffer, threads that diverge at a barrier, ...) becomes one `DeviceError` that names kernel, buffer, block and
thread.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tilewright.runtime.closable import Closable
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.communication.replay import refuse_communication
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import DeviceError, DeviceMissingError, InputError, KernelBuildError
from tilewright.runtime.interface.device import Progress
from tilewright.runtime.interface.state import NO_STATE, HostState, PlanState, StateMemory
from tilewright.runtime.plan.arrays import check_constants, check_repeats, host_inputs
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan, describe_launch
from tilewright.runtime.plan.tensor_map import ROUNDED, LaunchMap
from tilewright.runtime.temporary_folder import TemporaryFolder

DEFAULT_TIMEOUT_S = 600.0
_ERROR = re.compile(
    r"error launch=(?P<launch>-?\d+) block=(?P<block>[\d,]+) thread=(?P<thread>-?\d+) line=(?P<line>-?\d+)"
    r"(?: buffer=(?P<buffer>\d+) offset=(?P<offset>-?\d+))? text=(?P<text>.*)"
)


class Built(Protocol):
    """One built file; `log` holds the compiler's complaint where the build failed."""

    @property
    def path(self) -> Path: ...

    @property
    def log(self) -> str: ...


class KernelBuilder(Protocol):
    """A compiler of CUDA C to programs of this machine, for instance `tilewright.codegen.EmulatorBuilder`."""

    @property
    def missing(self) -> str:
        """The missing requirement, in words; empty where everything is there."""
        ...

    @property
    def version(self) -> str: ...

    def build_engine(self, folder: Path) -> Built: ...

    def build_kernels(
        self, kernels: Sequence[tuple[str, str]], folder: Path, done: Callable[[int], None] | None = None
    ) -> Sequence[Built]: ...


class EmulatorDevice(Closable):
    """Runs CUDA plans without a GPU.

    seed: 0 runs the threads of a block in order; another number permutes them anew after every barrier, so
    that a missing barrier shows. timeout_s: longest time of one run. Raises `DeviceMissingError` without a
    compiler.
    """

    language = "cuda"
    driver_version = ""  # the compiler is part of the name

    def __init__(
        self, builder: KernelBuilder, *, seed: int = 0, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        if builder.missing:
            raise DeviceMissingError(builder.missing)
        self.builder, self.seed, self.timeout_s = builder, seed, timeout_s
        self.name = f"CUDA emulator ({builder.version})"

    def load(
        self,
        plan: ExecutionPlan,
        constants: Mapping[str, Array],
        *,
        progress: Progress | None = None,
        communicator: AnyCommunicator | None = None,
        state: StateMemory | None = None,
    ) -> EmulatorPlan:
        """See `Device.load`; every kernel is built from its source, binaries in the plan are ignored."""
        self.check_open()
        validate(plan)
        refuse_communication(plan, self.name)
        checked = check_constants(plan, constants)
        for kernel in plan.kernels:
            if kernel.language != "cuda":
                raise InputError(
                    f"kernel {kernel.name!r}: expected CUDA C for the emulator, got {kernel.language}"
                )
        return EmulatorPlan(self, plan, checked, progress, PlanState.of(plan, checked, state, self.new_state))

    def new_state(self) -> HostState:
        """See `Device.new_state`."""
        self.check_open()
        return HostState()

    def _release(self) -> None:
        return


class EmulatorPlan(Closable):
    """A plan built for the emulator; each run is a fresh process with poisoned memory.

    Runs are atomic: several threads may call one plan, whose runs then follow one another.
    """

    def __init__(
        self,
        device: EmulatorDevice,
        plan: ExecutionPlan,
        constants: Mapping[str, Array],
        progress: Progress | None,
        state: PlanState = NO_STATE,
    ) -> None:
        self.plan, self._device, self._state = plan, device, state
        self._lock = state.lock
        self._folder = TemporaryFolder("tilewright-emulated-")
        self.folder = self._folder.path
        try:
            self._build(progress)
            fixed = {n: a for n, a in constants.items() if plan.buffer_by_name[n].kind == "constant"}
            self._places = _write_arrays(self.folder / "constants.bin", fixed)
        except BaseException:
            self.close()
            raise

    def _build(self, progress: Progress | None) -> None:
        engine = self._device.builder.build_engine(self.folder)
        if engine.log:
            raise KernelBuildError(f"the emulator's engine cannot be built: {engine.log}")
        kernels, finished = self.plan.kernels, 0

        def done(index: int) -> None:
            nonlocal finished
            finished += 1
            if progress is not None:
                progress(finished, len(kernels), kernels[index].name)

        pairs = [(kernel.entry, kernel.source) for kernel in kernels]
        built = self._device.builder.build_kernels(pairs, self.folder, done)
        for kernel, result in zip(kernels, built, strict=True):
            if result.log:
                raise KernelBuildError(
                    f"kernel {kernel.name!r}: {self._device.name} cannot build it: {result.log}"
                )
        self._kernel_files = [result.path.name for result in built]

    def run(self, inputs: Sequence[object]) -> list[Array]:
        """See `LoadedPlan.run`; a fault of a kernel raises `DeviceError` and leaves the state as it is."""
        with self._lock:
            self._execute(inputs, ["run 0"])
            outputs = self._read_outputs((*self.plan.outputs, *self._state_names))
            memory = self._state.memory
            if memory is not None:
                values = outputs[len(self.plan.outputs) :]
                for buffer, array in zip(self.plan.states, values, strict=True):
                    memory.write(buffer.title, array)
            return outputs[: len(self.plan.outputs)]

    @property
    def _state_names(self) -> tuple[str, ...]:
        return tuple(buffer.name for buffer in self.plan.states)

    def time(self, inputs: Sequence[object], repeats: int) -> list[float]:
        """See `LoadedPlan.time`: seconds on this CPU, which say nothing about a GPU."""
        check_repeats(repeats)
        with self._lock:
            lines = self._execute(inputs, ["run 0"] * (repeats + 1))
        return [float(line.split()[1]) for line in lines if line.startswith("run ")][1:]

    def time_kernels(self, inputs: Sequence[object], repeats: int) -> list[list[float]]:
        check_repeats(repeats)
        with self._lock:
            lines = self._execute(inputs, ["run 0", *["run 1"] * repeats])
        seconds: list[list[float]] = [[] for _ in self.plan.launches]
        for line in lines:
            if line.startswith("launch "):
                _, index, text = line.split()
                seconds[int(index)].append(float(text))
        return seconds

    def _execute(self, inputs: Sequence[object], runs: list[str]) -> list[str]:
        self.check_open()
        self._device.check_open()
        arrays = dict(zip(self.plan.inputs, host_inputs(self.plan, inputs), strict=True))
        memory = self._state.memory
        state = {b.name: memory.read(b.title) for b in self.plan.states} if memory is not None else {}
        places = self._places | _write_arrays(self.folder / "inputs.bin", arrays | state)
        (self.folder / "job.txt").write_text("\n".join(self._job(places, runs)) + "\n")
        command = [str(self.folder / "engine"), "job.txt", "outputs.bin"]
        try:
            out = subprocess.run(
                command,
                cwd=self.folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=self._device.timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise DeviceError(f"the emulator did not finish within {self._device.timeout_s:g} s") from None
        if out.returncode != 0:
            raise DeviceError(self._explain(out.stdout, out.stderr, out.returncode))
        return out.stdout.splitlines()

    def _job(self, places: Mapping[str, tuple[str, int]], runs: list[str]) -> list[str]:
        owners = self._owners()
        lines = [f"seed {self._device.seed}"]
        for name in owners:
            file, offset = places.get(name, ("-", 0))
            lines.append(f"buffer {self.plan.buffer_by_name[name].nbytes} {file} {offset}")
        lines += [f"kernel ./{file}" for file in self._kernel_files]
        kernels = {kernel.name: i for i, kernel in enumerate(self.plan.kernels)}
        for launch in self.plan.launches:
            words = [
                kernels[launch.kernel],
                *launch.grid,
                launch.block,
                launch.shared_bytes,
                len(launch.args),
            ]
            for position, name in enumerate(launch.args):
                owner, offset = self.plan.locate(name)
                words += [owners[owner.name], offset, int(position in launch.writes)]
            words += [*launch.cluster, len(launch.maps), *(n for m in launch.maps for n in _map_words(m))]
            lines.append(f"launch {' '.join(map(str, words))}")
        lines += runs
        for name in (*self.plan.outputs, *self._state_names):
            owner, offset = self.plan.locate(name)
            lines.append(f"output {owners[owner.name]} {offset} {_dense_bytes(self.plan, name)}")
        return lines

    def _owners(self) -> dict[str, int]:
        """Every buffer with memory of its own; arena buffers share no bytes here, so each has guard pages."""
        return {b.name: i for i, b in enumerate(b for b in self.plan.buffers if b.kind != "alias")}

    def _read_outputs(self, names: Sequence[str]) -> list[Array]:
        data, start, out = (self.folder / "outputs.bin").read_bytes(), 0, []
        for name in names:
            buffer, nbytes = self.plan.buffer_by_name[name], _dense_bytes(self.plan, name)
            flat = np.frombuffer(data[start : start + nbytes], dtype=DTYPES[buffer.dtype])
            out.append(flat.reshape(buffer.shape).copy())
            start += nbytes
        return out

    def _explain(self, answer: str, complaint: str, status: int) -> str:
        match = _ERROR.search(answer)
        if match is None:
            text = (complaint or answer).strip()[:400] or "no message"
            return f"the emulator ended with status {status}: {text}"
        index = int(match["launch"])
        if index < 0:
            return f"emulator: {match['text']}"
        launch = self.plan.launches[index]
        where = f"{describe_launch(index, launch)}, block ({match['block']})"
        if int(match["thread"]) >= 0:
            where += f", thread {match['thread']}"
        what = match["text"]
        if match["buffer"] is not None:
            name = list(self._owners())[int(match["buffer"])]
            what += f" {name!r} of {self.plan.buffer_by_name[name].nbytes} bytes, at byte {match['offset']}"
        source = self.plan.kernel_by_name[launch.kernel].source.splitlines()
        line = int(match["line"])
        shown = f" in line {line}: {source[line - 1].strip()}" if 0 < line <= len(source) else ""
        return f"{where}: {what}{shown}"

    def _release(self) -> None:
        with self._lock:
            self._folder.close()
            self._state.release()


def _map_words(m: LaunchMap) -> list[int]:
    """A map as `read_map` of the engine reads it."""
    recipe, window = m.recipe, m.recipe.window
    strides = (*recipe.strides, recipe.itemsize)
    box = recipe.box or (0,) * len(recipe.dims)
    words = [
        m.argument,
        m.offset,
        len(recipe.dims),
        recipe.itemsize,
        recipe.swizzle,
        int(recipe.fill == "nan"),
        int(recipe.dtype == ROUNDED),
    ]
    for dimension in reversed(list(zip(recipe.dims, strides, box, recipe.all_steps, strict=True))):
        words += dimension
    words += [window.channels, window.pixels] if window is not None else [0, 0]
    if window is not None:
        for corners in reversed(list(zip(window.lower, window.upper, strict=True))):
            words += corners
    return words


def _dense_bytes(plan: ExecutionPlan, name: str) -> int:
    buffer = plan.buffer_by_name[name]
    return buffer.size * DTYPES[buffer.dtype].itemsize


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> dict[str, tuple[str, int]]:
    """Write arrays one after the other; the file name and byte offset of each."""
    places: dict[str, tuple[str, int]] = {}
    with path.open("wb") as file:
        for name, array in arrays.items():
            places[name] = (path.name, file.tell())
            file.write(array.tobytes() or b"\0")  # a buffer has at least one byte
    return places
