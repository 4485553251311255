"""The torch.compile backend: `torch.compile(model, backend="tilewright")`, for inference and training.

Each subgraph that Dynamo captures is compiled at its first call, or runs in eager PyTorch after a warning
that says why. Nothing here imports torch until torch itself asks for the backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import count
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilewright.api import compile as compile_module
from tilewright.frontends.torch.captured import Draw, take_out_draws, take_out_results
from tilewright.frontends.torch.exported import from_exported
from tilewright.frontends.torch.survey import operator_name, place_of
from tilewright.frontends.torch.weights import host_array
from tilewright.ir import InputError, TilewrightError, UnsupportedError
from tilewright.running.executable import Executable

#: options a user may give: torch.compile(model, backend="tilewright", options={...})
OPTIONS = ("target", "precision", "tune", "freeze")
#: torch's name of a device -> our target
TARGETS = {"cpu": "opencl", "cuda": "cuda"}
_numbers = count()


@runtime_checkable
class GivesDeviceArrays(Protocol):
    """A loaded plan whose results can stay in the memory of its device."""

    def run_on_device(self, inputs: Sequence[object]) -> Sequence[Any]:
        """One array with `__dlpack__` per output."""
        ...


class FallbackWarning(UserWarning):
    """A subgraph runs in eager PyTorch; the message says which and why."""


def backend(
    graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """A callable for one subgraph captured by Dynamo.

    options: `target`, `precision` and `tune` as of `tilewright.compile` (the default target is that of the
    inputs' device: opencl for the CPU, cuda for a GPU); `freeze=False` keeps weights inputs instead of
    constants. Frozen weights are watched through torch's version counters: a change makes them inputs again.

    Where gradients are wanted, the forward and the backward graph of AOTAutograd are subgraphs of their own,
    and weights are inputs. Random numbers are drawn by torch, in its order, and given to the subgraph.

    Where shapes are symbolic, and where a subgraph cannot be imported or compiled, it runs in eager PyTorch
    after a `FallbackWarning`. Raises InputError for unknown options.
    """
    chosen = dict(options or {})
    if unknown := sorted(chosen.keys() - set(OPTIONS)):
        raise InputError(f"expected options among {', '.join(OPTIONS)}, got {', '.join(unknown)}")
    name = _name_of(graph)
    torch = import_module("torch")
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    try:
        _check_inputs(torch, example_inputs, tensors)
        chosen.setdefault("target", _target_of(tensors))
    except UnsupportedError as error:
        _warn(name, error)
        return graph.forward
    frozen_weights = chosen.pop("freeze", True)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *graph.parameters())):
        return _trained(name, graph, example_inputs, chosen)
    own = len(list(graph.parameters())) + len(list(graph.buffers()))
    weights = [own + i for i, x in enumerate(example_inputs) if _is_weight(torch, x)]
    frozen = (*range(own), *weights) if frozen_weights else ()

    def compiler(functional: Any, _: Sequence[Any]) -> Callable[..., Any]:
        reshape_for_view(functional)
        subgraph = Subgraph(name, functional, own + len(example_inputs), frozen, chosen)
        return make_boxed(subgraph)

    make_boxed = import_module("functorch.compile").make_boxed_func
    simplified = import_module("torch._functorch.aot_autograd").aot_module_simplified
    table = import_module("tilewright.frontends.torch.backward").random_decompositions()
    return simplified(
        graph, example_inputs, fw_compiler=compiler, inference_compiler=compiler, decompositions=table
    )


def _trained(
    name: str, graph: Any, example_inputs: Sequence[Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """A callable whose forward and backward graphs are compiled; torch cuts them apart."""
    functional = import_module("functorch.compile")
    attention = import_module("torch.nn.attention")
    simplified = import_module("torch._functorch.aot_autograd").aot_module_simplified
    decompositions = import_module("tilewright.frontends.torch.backward").decompositions()

    def compiler(pass_name: str) -> Callable[..., Any]:
        def compile_graph(captured: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
            reshape_for_view(captured)
            subgraph = Subgraph(f"{name}, {pass_name}", captured, len(inputs), (), options)
            return functional.make_boxed_func(subgraph)

        return compile_graph

    # attention as its parts, which have gradients of their own
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        return simplified(
            graph,
            example_inputs,
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("forward"),
            partition_fn=functional.min_cut_rematerialization_partition,
            decompositions=decompositions,
        )


class Subgraph:
    """A functional graph of ATen operators, compiled at its first call or run in eager PyTorch."""

    def __init__(
        self, name: str, graph: Any, inputs: int, frozen: Sequence[int], options: Mapping[str, Any]
    ) -> None:
        self._name = name
        self._graph = graph
        self._inputs = inputs
        self._frozen = tuple(frozen)
        self._options = dict(options)
        self._versions: tuple[tuple[int, int], ...] = ()
        self._run: Callable[[Sequence[Any]], Sequence[Any]] | None = None
        self._draws: Sequence[Draw] = take_out_draws(graph)
        self._all_results = take_out_results(graph)

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Results for tensors as Dynamo's guards admit them: shapes, dtypes and devices never change."""
        drawn = [draw() for draw in self._draws]
        computed = iter(self._results((*args, *drawn)))
        return [
            next(computed) if r.computed else r.value if r.input is None else (*args, *drawn)[r.input]
            for r in self._all_results
        ]

    def _results(self, args: Sequence[Any]) -> Sequence[Any]:
        """Those that are computed."""
        if not any(r.computed for r in self._all_results):
            return ()
        if self._run is not None and self._frozen and self._seen(args) != self._versions:
            warnings.warn(
                f"tilewright: weights of {self._name} changed; it is compiled again with weights as inputs",
                FallbackWarning,
                stacklevel=2,
            )
            self._run, self._frozen = None, ()
        if self._run is None:
            self._run = self._built(args)
        return self._run(args)

    def _seen(self, args: Sequence[Any]) -> tuple[tuple[int, int], ...]:
        """The addresses of the frozen tensors, and how often torch changed each."""
        return tuple((args[i].data_ptr(), args[i]._version) for i in self._frozen)

    def _built(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
        # Where AOTAutograd merged inputs, their places are not those Dynamo knew.
        if len(args) != self._inputs + len(self._draws) or any(args[i].is_inference() for i in self._frozen):
            self._frozen = ()
        self._versions = self._seen(args)
        try:
            # Torch keeps modes per thread, and those of a running graph are not those an export needs.
            with ThreadPoolExecutor(1) as clean:
                return clean.submit(_Compiled, self._graph, args, self._frozen, self._options).result()
        except TilewrightError as error:
            _warn(self._name, error)
            self._frozen = ()
            return lambda args: self._graph(*args)


class _Compiled:
    """A compiled subgraph: tensors in, tensors on the same device out."""

    def __init__(
        self, graph: Any, args: Sequence[Any], frozen: Sequence[int], options: Mapping[str, Any]
    ) -> None:
        self._torch = import_module("torch")
        self._device = next(a.device for a in args if isinstance(a, self._torch.Tensor))
        self._taken = [i for i in range(len(args)) if i not in frozen]
        program = self._exported(graph, args, frozen)
        specs = program.graph_signature.output_specs
        #: for every result the constant it is, or nothing where it is computed
        self._constants = [(hasattr(s.arg, "value"), getattr(s.arg, "value", None)) for s in specs]
        self._executable: Executable = compile_module(from_exported(program), **options, progress=False)

    def _exported(self, graph: Any, args: Sequence[Any], frozen: Sequence[int]) -> Any:
        torch = self._torch
        weights = {i: args[i].detach() for i in frozen}

        class Frozen(torch.nn.Module):  # type: ignore[misc, name-defined]
            """The subgraph with its weights inside."""

            def __init__(self) -> None:
                super().__init__()
                for i, weight in weights.items():
                    self.register_buffer(f"weight_{i}", weight)

            def forward(self, *inputs: Any) -> Any:
                left = iter(inputs)
                return graph(*(getattr(self, f"weight_{i}") if i in weights else next(left) for i in places))

        places = range(len(args))
        try:
            with torch.no_grad():
                return torch.export.export(Frozen(), tuple(args[i] for i in self._taken), strict=False)
        except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UnsupportedError(f"torch.export cannot export it: {lines[0]}") from error

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        inputs = [self._input(args[i]) for i in self._taken if isinstance(args[i], self._torch.Tensor)]
        computed = iter(self._computed(inputs))
        return [value if known else self._output(next(computed)) for known, value in self._constants]

    def _computed(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """NumPy arrays, or arrays in GPU memory where the device can give them."""
        if self._device.type == "cuda" and isinstance(self._executable, Executable):
            loaded = self._executable.load()
            if isinstance(loaded, GivesDeviceArrays):
                return loaded.run_on_device(inputs)
        return self._executable(*inputs)

    def _input(self, tensor: Any) -> Any:
        """Memory of the CPU is read in place; that of a GPU through DLPack, without a copy to the host."""
        return host_array(tensor) if tensor.device.type == "cpu" else tensor.detach().contiguous()

    def _output(self, array: Any) -> Any:
        torch = self._torch
        if not isinstance(array, np.ndarray):
            return torch.from_dlpack(array)
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(self._device)
        return torch.from_numpy(array).to(self._device)


def _check_inputs(torch: Any, inputs: Sequence[Any], tensors: Sequence[Any]) -> None:
    symbolic = [x for x in inputs if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool)]
    symbolic += [n for t in tensors for n in t.shape if type(n) is not int]
    if symbolic:
        shown = ", ".join(dict.fromkeys(map(str, symbolic)))
        raise UnsupportedError(f"dimensions are symbolic ({shown}); compile with dynamic=False")


def _target_of(tensors: Sequence[Any]) -> str:
    kinds = sorted({t.device.type for t in tensors})
    if len(kinds) != 1 or kinds[0] not in TARGETS:
        raise UnsupportedError(
            f"expected inputs on one device, cpu or cuda, got {', '.join(kinds) or 'none'}"
        )
    return TARGETS[kinds[0]]


def reshape_for_view(graph: Any) -> None:
    """Views become reshapes: strides that a view relies on may be others when the graph is exported.

    The graph is functional, so whether a result shares memory with its operand changes nothing.
    """
    aten = import_module("torch").ops.aten
    for node in graph.graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
    graph.recompile()


def _is_weight(torch: Any, value: Any) -> bool:
    """Parameters and buffers: Dynamo marks buffers of modules as having a fixed address."""
    return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def _name_of(graph: Any) -> str:
    calls = [n for n in graph.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    start = f", from {operator_name(calls[0])} at {place_of(calls[0])}" if calls else ""
    return f"subgraph {next(_numbers)} ({len(calls)} operators{start})"


def _warn(name: str, error: TilewrightError) -> None:
    warnings.warn(f"tilewright: {name} runs in eager PyTorch: {error}", FallbackWarning, stacklevel=3)
