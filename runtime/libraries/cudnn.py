"""cuDNN through its frontend package: its plans for a problem, and launches of them on given pointers."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from tilewright.runtime.errors import DeviceError, DeviceMissingError
from tilewright.runtime.libraries.attention import AttentionBackwardProblem, AttentionProblem
from tilewright.runtime.libraries.convolution import Array4, ConvolutionProblem
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.norm import NormProblem
from tilewright.runtime.libraries.problem import Problem

_DATA_TYPE = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
#: numbers that name the arrays of a graph
UIDS = {"a": 1, "b": 2, "bias": 3, "c": 4, "d": 5, "q": 6, "k": 7, "v": 8, "x": 9, "scale": 10, "epsilon": 11,
        "stats": 12, "g": 13, "dq": 14, "dk": 15, "dv": 16}  # fmt: skip
#: numerical notes of plans that compute something else than what was asked for
_NEVER = ("REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS", "NONDETERMINISTIC")

#: graphs that are kept while no launch uses them
KEPT_GRAPHS = 16


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


class PlannedGraph:
    """The graph of a problem with its plans listed; each is built once, however many launches use it."""

    def __init__(self, graph: Any, errors: tuple[type[Exception], ...]) -> None:
        self.graph, self._errors = graph, errors
        self._built: dict[int, int] = {}
        #: indices of all plans by their names, most promising first; equal ones count once
        self.plans: dict[str, int] = {}
        for index in range(graph.get_execution_plan_count()):
            try:
                self.plans.setdefault(str(graph.get_plan_name_at_index(index)), index)
            except errors:
                continue  # a plan that cannot even be named cannot be stored

    def build(self, name: str) -> int:
        """Build a plan where it is not yet; gives the bytes of its workspace."""
        index = self.plans[name]
        if index not in self._built:
            self.graph.build_plan_at_index(index)
            self._built[index] = int(self.graph.get_workspace_size_plan_at_index(index))
        return self._built[index]


class Cudnn:
    """A handle of cuDNN in the context that is current; `package` is what `open_cudnn` gives.

    A plan is stored by its name. The same version lists the same plans for the same graph, so that one is
    found and built again; a name that is not in the list is an error. Building one may take a second, and
    the package holds the interpreter meanwhile: launches of equal problems share their graph and its plans.
    """

    provider = "cudnn"

    def __init__(self, package: Any = None) -> None:
        self._package = open_cudnn() if package is None else package
        # Newer packages raise ValueError for a plan that its numerical notes leave out.
        self._errors = (self._package.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        try:
            self._handle = self._package.create_handle()
        except self._errors as error:
            raise DeviceError(f"cuDNN gives no handle: {error}") from None
        self._lock = threading.Lock()
        self._planning = threading.Lock()
        self._used: WeakValueDictionary[Problem, PlannedGraph] = WeakValueDictionary()
        self._kept: OrderedDict[Problem, PlannedGraph] = OrderedDict()

    @property
    def version(self) -> str:
        """Major, minor and patch, for instance `9.19.0`."""
        number = int(self._package.backend_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def close(self) -> None:
        """Destroy the handle; the context must be current."""
        self._kept.clear()
        handle, self._handle = self._handle, None
        if handle is not None:
            self._package.destroy_handle(handle)

    def kernels(self, problem: Problem, workspace_bytes: int) -> Iterator[LibraryKernel]:
        """The plans for a problem that can be built and need at most so much workspace, most promising first.

        Each is built when it is asked for. None where cuDNN does not support the problem.
        """
        problem.check()
        try:
            with self._planning:
                planned = self._graph(problem)
        except self._errors:
            return
        for name in planned.plans:
            try:
                with self._planning:
                    workspace = planned.build(name)
            except self._errors:
                continue  # not supported after all, or left out for its numerics
            if workspace <= workspace_bytes:
                yield LibraryKernel(self.provider, self.version, problem, name, workspace)

    def prepare(self, kernel: LibraryKernel, pointers: Mapping[str, int], doing: str) -> PreparedGraph:
        """A launch of a kernel on these addresses by role; raises `DeviceError` where it cannot run here."""
        return PreparedGraph(self, kernel, pointers, doing)

    def _graph(self, problem: Problem) -> PlannedGraph:
        """The graph of a problem, known or new; those that were asked for last are kept."""
        planned = self._used.get(problem)
        if planned is None:
            planned = self._used[problem] = PlannedGraph(self._described(problem), self._errors)
        self._kept[problem] = planned
        self._kept.move_to_end(problem)
        if len(self._kept) > KEPT_GRAPHS:
            self._kept.popitem(last=False)
        return planned

    def _described(self, problem: Problem) -> Any:
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

    def build(self, kernel: LibraryKernel, doing: str) -> tuple[PlannedGraph, int]:
        """The graph with the stored plan built, and the plan's index."""
        try:
            with self._planning:
                planned = self._graph(kernel.problem)
                if kernel.algorithm not in planned.plans:
                    raise DeviceError(
                        f"{doing}: cuDNN has no plan {kernel.algorithm!r} on this GPU: compile it again"
                    )
                needed = planned.build(kernel.algorithm)
        except self._errors as error:
            first = str(error).partition("\n")[0]
            raise DeviceError(f"{doing}: cuDNN does not build the stored plan: {first}") from None
        if needed > kernel.workspace_bytes:
            raise DeviceError(f"{doing}: the plan needs {needed} bytes of workspace here")
        return planned, planned.plans[kernel.algorithm]

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
        self._planned: PlannedGraph | None
        self._planned, self._index = library.build(kernel, doing)
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
        assert self._planned is not None
        graph = self._planned.graph
        try:
            self._library.execute(graph, self._index, self._pack, self._workspace, stream)
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise DeviceError(f"{self._doing}: cuDNN failed: {first}") from None

    def close(self) -> None:
        """Give the plan back."""
        self._planned = None


def _start_bytes(problem: Any, role: str) -> int:
    array = getattr(problem, role, None)
    return array.start * problem.itemsize(role) if isinstance(array, Array4) else 0


def described(package: Any, handle: Any, problem: Problem) -> Any:
    """The graph of a problem, its results being the arrays it writes; not validated yet.

    Raises what the package raises where it takes no such graph.
    """
    if isinstance(problem, AttentionProblem):
        return _GraphBuilder(package, handle, problem.dtype).attention(problem)
    if isinstance(problem, AttentionBackwardProblem):
        return _GraphBuilder(package, handle, problem.dtype).attention_backward(problem)
    if isinstance(problem, NormProblem):
        return _GraphBuilder(package, handle, problem.dtype).norm(problem)
    assert isinstance(problem, ConvolutionProblem)
    return _GraphBuilder(package, handle, problem.dtype).convolution(problem)


def host_numbers(problem: Problem) -> dict[str, ctypes.c_float]:
    """By role the numbers that a graph takes by value, from host memory."""
    return {"epsilon": ctypes.c_float(problem.epsilon)} if isinstance(problem, NormProblem) else {}


class _GraphBuilder:
    """A new graph that computes in float32, and what is put into it."""

    def __init__(self, package: Any, handle: Any, dtype: str) -> None:
        self.package = package
        self.compute = package.data_type.FLOAT
        self.graph = package.pygraph(
            io_data_type=self._type(dtype), intermediate_data_type=self.compute,
            compute_data_type=self.compute, handle=handle,
        )  # fmt: skip

    def _type(self, dtype: str) -> Any:
        return getattr(self.package.data_type, _DATA_TYPE[dtype])

    def _array(self, role: str, array: Array4, dtype: str, **more: Any) -> Any:
        return self.graph.tensor(
            dim=list(array.dims), stride=list(array.strides), data_type=self._type(dtype), name=role,
            uid=UIDS[role], **more,
        )  # fmt: skip

    def _vector(self, role: str, length: int, dtype: str) -> Any:
        """One element per channel."""
        return self._array(role, Array4((1, length, 1, 1), (length, 1, length, length)), dtype)

    def _result(self, value: Any, array: Array4, dtype: str, role: str = "d") -> Any:
        value.set_output(True).set_uid(UIDS[role]).set_dim(list(array.dims))
        value.set_stride(list(array.strides))
        value.set_data_type(self._type(dtype))
        return self.graph

    def convolution(self, p: ConvolutionProblem) -> Any:
        compute = self.compute
        value = self.graph.conv_fprop(
            image=self._array("a", p.a, p.dtype), weight=self._array("b", p.b, p.dtype),
            pre_padding=list(p.before), post_padding=list(p.after), stride=list(p.strides),
            dilation=list(p.dilations), compute_data_type=compute,
        )  # fmt: skip
        if p.c is not None:
            value = self.graph.add(a=value, b=self._array("c", p.c, p.result), compute_data_type=compute)
        if p.has_bias:
            bias = self._vector("bias", p.b.dims[0], p.result)
            value = self.graph.add(a=value, b=bias, compute_data_type=compute)
        if p.epilogue.startswith("relu"):
            value = self.graph.relu(input=value, compute_data_type=compute)
        return self._result(value, p.d, p.result)

    def attention(self, p: AttentionProblem) -> Any:
        options = self._causal(p.causal)
        if p.bias is not None:
            options["bias"] = self._array("bias", p.bias, p.bias_dtype)
        q, k, v = (self._array(role, getattr(p, role), p.dtype) for role in ("q", "k", "v"))
        value, stats = self.graph.sdpa(
            q=q, k=k, v=v, attn_scale=p.scale, generate_stats=p.stats is not None,
            compute_data_type=self.compute, **options,
        )  # fmt: skip
        if p.stats is not None:
            self._result(stats, p.stats, "float32", "stats")
        return self._result(value, p.d, p.dtype)

    def attention_backward(self, p: AttentionBackwardProblem) -> Any:
        q, k, v, o, g = (self._array(role, getattr(p, role), p.dtype) for role in ("q", "k", "v", "d", "g"))
        gradients = self.graph.sdpa_backward(
            q=q, k=k, v=v, o=o, dO=g, stats=self._array("stats", p.stats, "float32"), attn_scale=p.scale,
            use_deterministic_algorithm=True, compute_data_type=self.compute, **self._causal(p.causal),
        )  # fmt: skip
        for role, value in zip(("dq", "dk", "dv"), gradients, strict=True):
            self._result(value, getattr(p, role), p.dtype, role)
        return self.graph

    def _causal(self, causal: bool) -> dict[str, Any]:
        """What hides keys behind the diagonal, which begins with the first query and the first key."""
        if not causal:
            return {}
        first = self.package.diagonal_alignment.TOP_LEFT
        return {"diagonal_alignment": first, "diagonal_band_right_bound": 0}

    def norm(self, p: NormProblem) -> Any:
        columns = p.x.dims[1]
        options = {
            "norm_forward_phase": self.package.norm_forward_phase.INFERENCE,
            "input": self._array("x", p.x, p.dtype),
            "scale": self._vector("scale", columns, p.vectors),
            "epsilon": self._array(
                "epsilon", Array4((1, 1, 1, 1), (1, 1, 1, 1)), "float32", is_pass_by_value=True
            ),
            "compute_data_type": self.compute,
        }
        if p.has_bias:
            options["bias"] = self._vector("bias", columns, p.vectors)
        made = self.graph.layernorm(**options) if p.kind == "layer" else self.graph.rmsnorm(**options)
        return self._result(made[0], p.d, p.result)
