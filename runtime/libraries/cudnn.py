"""cuDNN through its frontend package: its plans for a problem, and launches of them on given pointers."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.runtime.errors import DeviceError, DeviceMissingError
from tilewright.runtime.libraries.convolution import Array4, ConvolutionProblem
from tilewright.runtime.libraries.cudnn_graphs import UIDS, described, host_numbers
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.problem import Problem

#: numerical notes of plans that compute something else than what was asked for
_NEVER = ("REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS", "NONDETERMINISTIC")


def open_cudnn() -> Any:
    """The frontend package with the library it has found.

    Raises `DeviceMissingError` naming the extra to install where one of them is missing.
    """
    try:
        import cudnn

        cudnn.backend_version()
    except (ImportError, OSError, RuntimeError) as error:
        # The package reports a library that cannot be loaded as RuntimeError.
        first = str(error).partition("\n")[0]
        raise DeviceMissingError(
            f"cuDNN needs its frontend package and library: pip install 'tilewright[libraries]' ({first})"
        ) from None
    return cudnn


class Cudnn:
    """A handle of cuDNN in the context that is current; `package` is what `open_cudnn` gives.

    A plan is stored by its name. The same version lists the same plans for the same graph, so that one is
    found and built again; a name that is not in the list is an error.
    """

    provider = "cudnn"

    def __init__(self, package: Any = None) -> None:
        self._package = open_cudnn() if package is None else package
        self._errors = (self._package.cudnnGraphNotSupportedError, RuntimeError)
        try:
            self._handle = self._package.create_handle()
        except self._errors as error:
            raise DeviceError(f"cuDNN gives no handle: {error}") from None
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        """Major, minor and patch, for instance `9.19.0`."""
        number = int(self._package.backend_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def close(self) -> None:
        """Destroy the handle; the context must be current."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._package.destroy_handle(handle)

    def kernels(self, problem: Problem, workspace_bytes: int) -> list[LibraryKernel]:
        """The plans for a problem that can be built and need at most so much workspace.

        None where cuDNN does not support it.
        """
        problem.check()
        try:
            graph = self.graph(problem)
        except self._errors:
            return []
        found: list[LibraryKernel] = []
        for index, name in self.plans(graph):
            try:
                graph.build_plan_at_index(index)
                workspace = int(graph.get_workspace_size_plan_at_index(index))
            except self._errors:
                continue  # not supported after all, or left out for its numerics
            if workspace <= workspace_bytes and all(name != k.algorithm for k in found):
                found.append(LibraryKernel(self.provider, self.version, problem, name, workspace))
        return found

    def plans(self, graph: Any) -> Iterator[tuple[int, str]]:
        """Indices and names of all plans of a graph, most promising first."""
        for index in range(graph.get_execution_plan_count()):
            try:
                yield index, str(graph.get_plan_name_at_index(index))
            except self._errors:
                continue  # a plan that cannot even be named cannot be stored

    def prepare(self, kernel: LibraryKernel, pointers: Mapping[str, int], doing: str) -> PreparedGraph:
        """A launch of a kernel on these addresses by role; raises `DeviceError` where it cannot run here."""
        return PreparedGraph(self, kernel, pointers, doing)

    def graph(self, problem: Problem) -> Any:
        """The operations with their plans listed, none of them built yet."""
        graph = described(self._package, self._handle, problem)
        graph.validate()
        graph.build_operation_graph()
        names = ("A", "B", "FALLBACK") if isinstance(problem, ConvolutionProblem) else ("A", "FALLBACK")
        graph.create_execution_plans([getattr(self._package.heur_mode, name) for name in names])
        notes = self._package.numerical_note
        exact = isinstance(problem, ConvolutionProblem) and problem.dtype == "float32" and not problem.tf32
        never = (*_NEVER, "TENSOR_CORE") if exact else _NEVER
        graph.deselect_numeric_notes([getattr(notes, name) for name in never])
        return graph

    def build(self, kernel: LibraryKernel, doing: str) -> tuple[Any, int]:
        """The graph with the stored plan built, and the plan's index."""
        try:
            graph = self.graph(kernel.problem)
            for index, name in self.plans(graph):
                if name == kernel.algorithm:
                    graph.build_plan_at_index(index)
                    needed = int(graph.get_workspace_size_plan_at_index(index))
                    if needed > kernel.workspace_bytes:
                        raise DeviceError(f"{doing}: the plan needs {needed} bytes of workspace here")
                    return graph, index
        except self._errors as error:
            first = str(error).partition("\n")[0]
            raise DeviceError(f"{doing}: cuDNN does not build the stored plan: {first}") from None
        raise DeviceError(f"{doing}: cuDNN has no plan {kernel.algorithm!r} on this GPU: compile it again")

    def execute(self, graph: Any, index: int, pack: dict[int, int], workspace: int, stream: int) -> None:
        """Queue a built plan on a stream."""
        with self._lock:  # the handle's stream is state that others set as well
            self._package.set_stream(handle=self._handle, stream=stream)
            graph.execute_plan_at_index(pack, workspace, index, handle=self._handle)


class PreparedGraph:
    """One graph on fixed addresses; `start` only queues it, also on a stream that is captured."""

    def __init__(
        self, library: Cudnn, kernel: LibraryKernel, pointers: Mapping[str, int], doing: str
    ) -> None:
        self._library, self._doing = library, doing
        self._graph, self._index = library.build(kernel, doing)
        problem = kernel.problem
        self._numbers = host_numbers(problem)  # read from host memory at every start
        self._pack = {
            UIDS[role]: address + _start_bytes(problem, role)
            for role, address in pointers.items()
            if role != "workspace"
        } | {UIDS[role]: ctypes.addressof(number) for role, number in self._numbers.items()}
        self._workspace = pointers["workspace"]

    def start(self, stream: int) -> None:
        """Queue the graph on a stream."""
        try:
            self._library.execute(self._graph, self._index, self._pack, self._workspace, stream)
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise DeviceError(f"{self._doing}: cuDNN failed: {first}") from None

    def close(self) -> None:
        """Free the plan."""
        self._graph = None


def _start_bytes(problem: Any, role: str) -> int:
    array = getattr(problem, role, None)
    return array.start * problem.itemsize(role) if isinstance(array, Array4) else 0
