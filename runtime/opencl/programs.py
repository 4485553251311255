"""OpenCL C -> built programs of one device: groups of kernels at once, binaries kept from run to run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any, Protocol

from tilewright.runtime.errors import KernelBuildError
from tilewright.runtime.machine import usable_cores
from tilewright.runtime.opencl.build_process import BuildProcess, ProcessEndedError, shared_process
from tilewright.runtime.opencl.driver import first_complaint
from tilewright.runtime.opencl.platforms import full_name, implementation_of, settings_of
from tilewright.runtime.plan.execution_plan import KernelCode

BUILD_OPTIONS = ("-cl-std=CL1.2", "-w")
#: the option with which a compiler leaves out what may crash it
PLAIN_OPTION = "-cl-opt-disable"
#: kernels that are built as one program at most: a build of its own costs 0.05 to 0.2 s
GROUP = 16
#: kernels from which another thread pays, and threads at most: drivers compile in part behind a lock
LEAST_KERNELS, MOST_THREADS = 4, 4
#: characters of kernels that pay for one more process: Intel's compiler takes 3 us for each on Zen 4, and the
#: process 0.3 to 0.5 s until it compiles
PROCESS_CHARACTERS = 200_000
#: programs per process, so that none waits long for the last one of another
PROGRAMS_PER_PROCESS = 4
_DIGEST_BYTES = 64
#: held where a compiler is not safe in several threads: Intel's, in which threads wait for each other anyhow,
#: crashed in a pass of LLVM when eight threads built programs for a few minutes (2026.2)
_COMPILING = threading.Lock()


class BinaryStore(Protocol):
    """A store of binaries between runs; it gives back what was stored, whole, or nothing."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, payload: bytes) -> None: ...


class ProgramBuilder:
    """Builds kernels for one device; with a `store`, what was built once is loaded.

    A binary is stored by the texts of its group, and for each kernel the group that has it. Implementations
    that compile when a kernel is first launched keep their own files, so nothing of theirs is stored.
    """

    def __init__(self, cl: Any, context: Any, device: Any, store: BinaryStore | None) -> None:
        made_by = implementation_of(device)
        self._late = made_by is not None and made_by.compiles_at_launch
        self._one_at_a_time = made_by is not None and made_by.one_at_a_time
        self._turn = _COMPILING if self._one_at_a_time else contextlib.nullcontext()
        self._cl, self._context, self._device = cl, context, device
        self._store = None if self._late else store
        self._name = full_name(device)
        versions = device.platform.version, device.version, device.driver_version
        self._made_by = (*versions, self._name, *settings_of(device))

    def build(self, kernels: Sequence[KernelCode], progress: Callable[[str], None]) -> dict[str, Any]:
        """The program of every kernel, by its source; `progress` hears the name of each.

        Raises `KernelBuildError` naming the kernel that the device's compiler refuses.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._cl.CompilerWarning)
            programs = self._stored(kernels)
            self._tell(kernels, programs, progress)
            self._build([k for k in kernels if k.source not in programs], programs, progress)
        return programs

    def _build(
        self, kernels: Sequence[KernelCode], programs: dict[str, Any], progress: Callable[[str], None]
    ) -> None:
        """Build kernels into `programs`, in other processes where a compiler might crash in this one."""
        groups = self.groups(kernels)
        count = self._processes(kernels) if groups else 0
        processes = [shared_process(self._name)] if count else []
        processes += [BuildProcess(self._name) for _ in range(count - 1)]
        places: SimpleQueue[BuildProcess | None] = SimpleQueue()  # who is free to build; None is this process
        free: Sequence[BuildProcess | None] = processes or [None] * self._threads(groups)
        for place in free:
            places.put(place)
        try:
            with ThreadPoolExecutor(places.qsize(), thread_name_prefix="opencl") as pool:
                futures = [pool.submit(self._built_at, places, group) for group in groups]
                try:
                    for future in as_completed(futures):
                        built = future.result()
                        programs.update(built)
                        self._tell(kernels, built, progress)
                except BaseException:
                    for process in processes:
                        process.close()
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        finally:
            for process in processes[1:]:
                process.close()

    def _tell(
        self, kernels: Sequence[KernelCode], built: Mapping[str, Any], progress: Callable[[str], None]
    ) -> None:
        for kernel in kernels:
            if kernel.source in built:
                progress(kernel.name)

    def groups(self, kernels: Sequence[KernelCode]) -> list[list[KernelCode]]:
        """Return the kernels that `build` puts into one program if none is stored, the same every time."""
        unique = {k.source: k for k in kernels}
        processes = self._processes(kernels)
        if processes > 1:
            count = processes * PROGRAMS_PER_PROCESS
        else:
            count = 1 if self._late else min(usable_cores(), MOST_THREADS, len(unique) // LEAST_KERNELS)
        return _grouped(list(unique.values()), max(count, -(-len(unique) // GROUP)))

    def _processes(self, kernels: Sequence[KernelCode]) -> int:
        """Return the number of other processes that are to build kernels; 0 where threads of this one do."""
        if not self._one_at_a_time:
            return 0
        characters = sum(map(len, {k.source for k in kernels}))
        return max(1, min(usable_cores(), MOST_THREADS, characters // PROCESS_CHARACTERS))

    def _threads(self, groups: Sequence[object]) -> int:
        return 1 if self._late else max(1, min(usable_cores(), MOST_THREADS, len(groups)))

    def _built_at(
        self, places: SimpleQueue[BuildProcess | None], group: Sequence[KernelCode]
    ) -> dict[str, Any]:
        """The programs of a group, built where somebody is free."""
        place = places.get()
        try:
            return self._built(group) if place is None else self._built_by(place, group)
        except ProcessEndedError as ended:
            place = None
            if ended.crashed:
                return self._built_apart(group)
            warnings.warn(
                f"a process that builds kernels {ended}; they are built in this process",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._built(group)
        finally:
            places.put(place)

    def _built_by(
        self, process: BuildProcess, group: Sequence[KernelCode], options: Sequence[str] = BUILD_OPTIONS
    ) -> dict[str, Any]:
        """The program of a group, built by another process. Raises `ProcessEndedError` where that ends."""
        binary = process.build("\n".join(k.source for k in group), options)
        program = self._loaded(binary)
        if binary is None or program is None:
            return self._built(group)  # which says what the compiler complains of
        self._keep(group, binary)
        return {k.source: program for k in group}

    def _built_apart(self, group: Sequence[KernelCode]) -> dict[str, Any]:
        """The programs of a group on which the compiler crashed, each built alone in another process.

        Where it crashes again the kernel is built without optimisations, which is told. Raises
        `KernelBuildError` naming the kernel on which it crashes even then.
        """
        programs: dict[str, Any] = {}
        for kernel in group:
            for options in (BUILD_OPTIONS, (*BUILD_OPTIONS, PLAIN_OPTION)):
                try:
                    with contextlib.closing(BuildProcess(self._name)) as process:
                        programs |= self._built_by(process, [kernel], options)
                    break
                except ProcessEndedError as ended:
                    if PLAIN_OPTION in options:
                        raise KernelBuildError(
                            f"kernel {kernel.name!r}: {self._name} {ended} when building it"
                        ) from None
            if PLAIN_OPTION in options:
                warnings.warn(
                    f"kernel {kernel.name!r} is built without optimisations: the compiler of {self._name} "
                    "crashes with them",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return programs

    def _built(self, group: Sequence[KernelCode]) -> dict[str, Any]:
        if len(group) > 1:
            with contextlib.suppress(self._cl.Error):
                program = self._compiled("\n".join(k.source for k in group))
                self._keep(group, self._binary(program))
                return {k.source: program for k in group}
        # What cannot be built together is built alone, which names the kernel at fault.
        programs = {}
        for kernel in group:
            try:
                programs[kernel.source] = self._compiled(kernel.source)
            except self._cl.Error as error:
                raise KernelBuildError(
                    f"kernel {kernel.name!r}: {self._name} cannot build it: "
                    f"{first_complaint(str(error), kernel.source)}"
                ) from None
            self._keep([kernel], self._binary(programs[kernel.source]))
        return programs

    def _binary(self, program: Any) -> bytes:
        (binary,) = program.get_info(self._cl.program_info.BINARIES)
        return bytes(binary)

    def _compiled(self, text: str) -> Any:
        # pyopencl's own cache is off: it unpickles, has no checksums and waits for locks of killed processes.
        with self._turn:
            return self._cl.Program(self._context, text).build(list(BUILD_OPTIONS), cache_dir=False)

    def _key(self, *parts: str) -> str:
        return hashlib.sha256(json.dumps([self._made_by, BUILD_OPTIONS, *parts]).encode()).hexdigest()

    def _keep(self, group: Sequence[KernelCode], binary: bytes) -> None:
        if self._store is None:
            return
        key = self._key("binary", *(k.source for k in group))
        self._store.put(key, binary)
        for kernel in group:
            self._store.put(self._key("kernel", kernel.source), key.encode())

    def _stored(self, kernels: Sequence[KernelCode]) -> dict[str, Any]:
        """Programs of kernels that were built before, by source."""
        if self._store is None:
            return {}
        programs: dict[str, Any] = {}
        loaded: dict[str, Any] = {}
        for kernel in kernels:
            key = (self._store.get(self._key("kernel", kernel.source)) or b"").decode()
            if len(key) == _DIGEST_BYTES and key not in loaded:
                loaded[key] = self._loaded(self._store.get(key))
            if loaded.get(key) is not None:
                programs[kernel.source] = loaded[key]
        return programs

    def _loaded(self, binary: bytes | None) -> Any:
        """The program of a binary; None where there is none, or the driver takes it no more."""
        if binary is None:
            return None
        with self._turn, contextlib.suppress(self._cl.Error):
            return self._cl.Program(self._context, [self._device], [binary]).build(list(BUILD_OPTIONS))
        return None


def _grouped(kernels: Sequence[KernelCode], count: int) -> list[list[KernelCode]]:
    """`count` groups about equal in text; more where one would have more than `GROUP`, or equal entries."""
    groups: list[list[KernelCode]] = [[] for _ in range(count)]
    for kernel in sorted(kernels, key=lambda k: (-len(k.source), k.source)):
        free = [g for g in groups if len(g) < GROUP and all(k.entry != kernel.entry for k in g)]
        if free:
            min(free, key=lambda g: sum(len(k.source) for k in g)).append(kernel)
        else:
            groups.append([kernel])
    place = {kernel.source: i for i, kernel in enumerate(kernels)}
    return [sorted(group, key=lambda k: place[k.source]) for group in groups if group]
