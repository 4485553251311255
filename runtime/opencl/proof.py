"""Kernels are built and run once in a process of their own where a compiler may crash or poison its cache.

`Prover` is what a device uses. `python -m tilewright.runtime.opencl.proof DEVICE` is the process: it takes
groups of kernels as lines of JSON, runs every kernel on zeros, and says which one it is at, so that a
compiler that ends it still leaves the kernel's name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tilewright.runtime.errors import KernelBuildError
from tilewright.runtime.machine import cache_folder
from tilewright.runtime.opencl.child_process import end_child, leave_no_core, start_child
from tilewright.runtime.opencl.platforms import (
    full_name,
    implementation_of,
    import_pyopencl,
    list_opencl_devices,
    settings_of,
)
from tilewright.runtime.opencl.programs import BUILD_OPTIONS, BinaryStore
from tilewright.runtime.opencl.trust import how_ended, processor
from tilewright.runtime.plan.execution_plan import ExecutionPlan, KernelCode
from tilewright.runtime.temporary_folder import TemporaryFolder

#: how long a compiler may take over one program, also on a busy machine
MOST_S = 600.0
_PROVEN = b"proven\n"


class _TogetherError(Exception):
    """A compiler crashed on a program of several kernels."""


class Prover:
    """Proves the kernels of plans on one device before anything else builds them.

    The process has a private folder for the implementation's cache. When all kernels of a plan came out well,
    what is in it moves to the real one; after a crash it is thrown away. Proofs are kept in `store`.
    `command` is the process, which is given the device's name.
    """

    def __init__(
        self, device: Any, store: BinaryStore | None, *, command: Sequence[str] = (), most_s: float = MOST_S
    ) -> None:
        module = (sys.executable, "-m", "tilewright.runtime.opencl.proof", str(device.name))
        self._command, self._most_s = tuple(command) or module, most_s
        self._name, self._store = full_name(device), store
        made_by = implementation_of(device)
        self._variable = made_by.cache_variable if made_by else ""
        # Where the implementation keeps what it compiled; None where it keeps nothing.
        self._cache = (
            cache_folder(self._variable, made_by.cache_folder) if made_by and self._variable else None
        )
        self._facts = (
            device.version,
            device.driver_version,
            device.platform.version,
            self._name,
            processor(),
            *settings_of(device),
        )
        self._known: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: TemporaryFolder | None = None
        self._lock = threading.Lock()

    def prove(self, plan: ExecutionPlan, groups: Sequence[Sequence[KernelCode]]) -> None:
        """Build and run what was never proven; `groups` are kernels that are built as one program.

        Raises `KernelBuildError` naming the kernel that the compiler crashes on, or takes too long for.
        """
        with self._lock:
            orders = {kernel.name: _order(plan, kernel) for group in groups for kernel in group}
            keys = {name: self._key(order) for name, order in orders.items()}
            unproven = [group for group in groups if not all(self._proven(keys[k.name]) for k in group)]
            if not unproven:
                return
            self._prove([[orders[k.name] for k in group] for group in unproven])
            for key in (keys[k.name] for group in unproven for k in group):
                self._known.add(key)
                if self._store is not None:
                    self._store.put(key, _PROVEN)

    def close(self) -> None:
        """End the process and remove its folder; may be called twice."""
        with self._lock:
            self._end()

    def _key(self, order: dict[str, Any]) -> str:
        return hashlib.sha256(json.dumps(["proof", self._facts, BUILD_OPTIONS, order]).encode()).hexdigest()

    def _proven(self, key: str) -> bool:
        return key in self._known or (self._store is not None and self._store.get(key) == _PROVEN)

    def _prove(self, groups: list[list[dict[str, Any]]]) -> None:
        try:
            self._ask(groups)
        except _TogetherError as crash:
            # One at a time, the kernel at fault is known.
            self._ask([[order] for group in groups for order in group], keep=False)
            self._end()
            raise KernelBuildError(str(crash)) from None

    def _ask(self, groups: list[list[dict[str, Any]]], *, keep: bool = True) -> None:
        """Have the process prove groups; ends it where one does not come out well. keep: what it compiled."""
        process, folder = self._started()
        assert process.stdin is not None
        at: list[str] = []
        try:
            with contextlib.suppress(BrokenPipeError):  # its end is reported below
                process.stdin.write(json.dumps(groups).encode() + b"\n")
                process.stdin.flush()
            for answer in _answers(process, self._most_s):
                if answer.get("finished"):
                    if keep and self._cache is not None:
                        _adopt(folder.path, self._cache)
                    return
                if "error" in answer:
                    raise KernelBuildError(f"{_named(at)}: {self._name} cannot run it: {answer['error']}")
                at = answer.get("begins", at)
            late = process.poll() is None
            process.kill()
            ended = f"took more than {self._most_s:.0f} s" if late else how_ended(process.wait())
            message = f"{_named(at)}: {self._name} {ended} when building and running it for the first time"
            raise _TogetherError(message) if len(at) > 1 else KernelBuildError(message)
        except BaseException:
            self._end()
            raise

    def _started(self) -> tuple[subprocess.Popen[bytes], TemporaryFolder]:
        if self._process is None or self._folder is None:
            self._folder = TemporaryFolder("tilewright-proof-")
            own_cache = {self._variable: str(self._folder.path)} if self._variable else {}
            self._process = start_child(self._command, own_cache)
        return self._process, self._folder

    def _end(self) -> None:
        process, self._process = self._process, None
        folder, self._folder = self._folder, None
        if process is not None:
            end_child(process)
        if folder is not None:
            folder.close()


def _named(kernels: Sequence[str]) -> str:
    names = ", ".join(map(repr, kernels)) or "of a plan"
    return f"kernel{'s' if len(kernels) > 1 else ''} {names}"


def _order(plan: ExecutionPlan, kernel: KernelCode) -> dict[str, Any]:
    """A kernel as the process takes it: its text, and each shape in which the plan launches it."""
    launches = []
    for launch in plan.launches:
        if launch.kernel == kernel.name:
            sizes = [plan.buffer_by_name[name].nbytes for name in launch.args]
            shape = [list(launch.grid), launch.block, launch.shared_bytes, sizes]
            if shape not in launches:
                launches.append(shape)
    return {"name": kernel.name, "entry": kernel.entry, "source": kernel.source, "launches": launches}


def _answers(process: subprocess.Popen[bytes], most_s: float) -> Iterator[dict[str, Any]]:
    """Yield the output of the process, line by line, until it ends or is silent for `most_s`."""
    assert process.stdout is not None
    descriptor, rest = process.stdout.fileno(), b""
    while select.select([descriptor], [], [], most_s)[0]:
        data = os.read(descriptor, 1 << 16)
        if not data:
            process.wait()
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # a compiler's own output says nothing
                answer = json.loads(line)
                if isinstance(answer, dict):
                    yield answer


def _adopt(private: Path, real: Path) -> None:
    """Move what a compiler left in its private cache to the real one, each file whole or not at all."""
    for file in sorted(private.rglob("*")):
        target = real / file.relative_to(private)
        # A cache that cannot be written costs compiling once more in this process, of what is proven by now.
        with contextlib.suppress(OSError):
            if file.is_file() and not file.name.startswith("tempfile") and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                handle, part = tempfile.mkstemp(dir=target.parent, prefix="tempfile-tilewright-")
                os.close(handle)
                shutil.copy2(file, part)
                os.replace(part, target)


def _run(cl: Any, context: Any, queue: Any, group: list[dict[str, Any]]) -> None:
    """Build the kernels of a group as `ProgramBuilder` does, and run each one on zeros."""
    _say(begins=[kernel["name"] for kernel in group])
    try:
        together = cl.Program(context, "\n".join(dict.fromkeys(k["source"] for k in group)))
        programs = dict.fromkeys(
            (k["name"] for k in group), together.build(list(BUILD_OPTIONS), cache_dir=False)
        )
    except cl.Error:
        programs = {}
    for kernel in group:
        _say(begins=[kernel["name"]])
        try:
            program = programs.get(kernel["name"]) or cl.Program(context, kernel["source"]).build(
                list(BUILD_OPTIONS), cache_dir=False
            )
        except cl.Error:
            continue  # whoever asks builds it as well, and says what the compiler complains of
        try:
            for launch in kernel["launches"]:
                _launch(cl, context, queue, cl.Kernel(program, kernel["entry"]), launch)
        except cl.Error as error:
            _say(error=str(error))
            return


def _launch(cl: Any, context: Any, queue: Any, kernel: Any, launch: list[Any]) -> None:
    grid, block, shared_bytes, sizes = launch
    buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, max(1, size)) for size in sizes]
    for buffer in buffers:
        cl.enqueue_fill_buffer(queue, buffer, b"\0", 0, buffer.size)
    for position, argument in enumerate(
        [*buffers, *([cl.LocalMemory(shared_bytes)] if shared_bytes else [])]
    ):
        kernel.set_arg(position, argument)
    cl.enqueue_nd_range_kernel(queue, kernel, (grid[0] * block, *grid[1:]), (block, 1, 1)).wait()
    queue.finish()


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def serve(orders: IO[bytes], name: str) -> None:
    """Take orders until there are no more."""
    warnings.simplefilter("ignore")
    cl = import_pyopencl()
    device = next(d for d in list_opencl_devices() if d.name == name)
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    for line in orders:
        for group in json.loads(line):
            _run(cl, context, queue, group)
        _say(finished=True)


if __name__ == "__main__":
    leave_no_core()
    serve(sys.stdin.buffer, sys.argv[1])
