"""The ways in: both ONNX exporters of torch, torch.export, and torch.compile."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from importlib import import_module
from typing import Any, Protocol

import numpy as np

import tilewright as tw
from tilewright.compilation.option_values import Precision
from tilewright.dynamo import FallbackWarning
from tilewright.frontends.torch.weights import host_array
from tilewright.ir import UnsupportedError
from tilewright.tools.arguments.printing import error_line


class ExporterError(Exception):
    """Torch itself does not export the network: nothing of ours was asked."""


class FellBack(UnsupportedError):
    """Part of the network ran in eager torch."""


class Way(Protocol):
    """A network that came in once and is compiled as often as wanted."""

    def run(
        self, target: str, precision: Precision, inputs: Sequence[Any], *, only_compile: bool
    ) -> list[Any]:
        """Arrays for torch tensors of the CPU; none where it is compiled only."""
        ...


class Imported:
    """A module of ours, imported from what torch exported or from a file.

    order: the places among the inputs that the module still has, in its order; by default all. exported: the
    ONNX file that torch wrote, where that was the way.
    """

    def __init__(
        self, module: tw.Module, order: Sequence[int] | None = None, exported: bytes | None = None
    ) -> None:
        self._module = module
        self._order = order
        self._exported = exported

    def as_exported(self, inputs: Sequence[Any]) -> list[np.ndarray] | None:
        """Results of ONNX Runtime from the file that torch wrote; None where there is no such file.

        Raises ModuleNotFoundError where ONNX Runtime is not installed.
        """
        if self._exported is None:
            return None
        runtime = import_module("onnxruntime")
        runtime.set_default_logger_severity(3)
        session = runtime.InferenceSession(self._exported, providers=["CPUExecutionProvider"])
        names = [x.name for x in session.get_inputs()]
        feed = dict(zip(names, (host_array(x) for x in inputs), strict=True))
        return [np.asarray(y) for y in session.run(None, feed)]

    def run(
        self, target: str, precision: Precision, inputs: Sequence[Any], *, only_compile: bool
    ) -> list[Any]:
        """Compile, and call with the inputs the module still has."""
        arguments = inputs if self._order is None else [inputs[i] for i in self._order]
        with tw.compile(self._module, target=target, precision=precision, progress=False) as exe:
            return (
                []
                if only_compile
                else exe(*(x if isinstance(x, np.ndarray) else host_array(x) for x in arguments))
            )


class Dynamo:
    """The network itself: torch.compile captures and compiles it at each run."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def run(
        self, target: str, precision: Precision, inputs: Sequence[Any], *, only_compile: bool
    ) -> list[Any]:
        """Compile at the first call; raises FellBack where eager torch had to help.

        A copy of the network runs, since the network itself stays where its references are computed. What
        Dynamo leaves to eager torch (recurrent layers) computes in float32, not in TF32, as we do.
        """
        torch = import_module("torch")
        place = "cuda" if target.startswith("cuda") and torch.cuda.is_available() else "cpu"
        torch._dynamo.reset()
        torch.backends.cudnn.allow_tf32 = False
        options = {"target": target, "precision": precision}
        network = deepcopy(self._network).to(place)
        compiled = torch.compile(network, backend="tilewright", options=options, dynamic=False)
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always", FallbackWarning)
            results = compiled(*(x.to(place) for x in inputs))
        for warning in caught:
            if issubclass(warning.category, FallbackWarning):
                raise FellBack(str(warning.message))
        return [host_array(y) for y in results]


def _onnx_dynamo(network: Any, inputs: Sequence[Any]) -> Way:
    program = _exported(lambda torch: torch.onnx.export(network, tuple(inputs), dynamo=True, verbose=False))
    model = program.model_proto
    return Imported(tw.frontends.onnx.load(model), exported=model.SerializeToString())


def _onnx_script(network: Any, inputs: Sequence[Any]) -> Way:
    file = io.BytesIO()
    # This exporter has no form for torch's fused encoder layers, which stand for their parts anyway.
    import_module("torch").backends.mha.set_fastpath_enabled(False)
    try:
        _exported(
            lambda torch: torch.onnx.export(network, tuple(inputs), file, dynamo=False, opset_version=17)
        )
    finally:
        import_module("torch").backends.mha.set_fastpath_enabled(True)
    return Imported(tw.frontends.onnx.load(file.getvalue()), exported=file.getvalue())


def _export(network: Any, inputs: Sequence[Any]) -> Way:
    program = _exported(lambda torch: torch.export.export(network, tuple(inputs)))
    return Imported(tw.frontends.torch.from_exported(program))


def _exported(export: Any) -> Any:
    torch = import_module("torch")
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            return export(torch)
    except Exception as error:
        raise ExporterError(f"{type(error).__name__}: {error_line(error, 300)}") from error


#: the way in of networks that come as a file
FILE = "file"
#: the ways in of networks of torch
WAYS: Mapping[str, Any] = {
    "onnx-dynamo": _onnx_dynamo,
    "onnx-script": _onnx_script,
    "export": _export,
    "compile": lambda network, inputs: Dynamo(network),
}
