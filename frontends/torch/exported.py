"""From a program of torch.export to our graph level: survey, TVM's importer, Relax, types checked."""

from __future__ import annotations

from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from tilewright.frontends.relax import from_module
from tilewright.frontends.torch.decompositions import FAILURES, core_program
from tilewright.frontends.torch.survey import survey
from tilewright.frontends.torch.training import inference_form, with_lasting_dropout
from tilewright.frontends.torch.weights import weights_of, with_buffers_as_parameters
from tilewright.ir.bounded_file import require_regular
from tilewright.ir.errors import InputError, UnsupportedError, file_path
from tilewright.ir.nodes import Module
from tilewright.ir.types import TensorType, dtype_name


def from_exported(program: Any, *, training: bool = False) -> Module:
    """The graph-level module of a `torch.export.ExportedProgram`, made through TVM's importer for Relax.

    Inputs of the module are the program's tensor inputs in order; parameters, buffers and constants become
    constants, the first two under their names in the model's state_dict; outputs are the program's tensor
    outputs in order, with nested containers flattened. What training may change (`Module.parameters`) are the
    parameters that require a gradient, never the buffers.

    The module is the network as inference runs it; dropout that is off, and batch norms, stay ops, which
    `tilewright.train_step` gives back their meaning in training. training: take a program that was exported
    in training mode for the network that it trains, instead of refusing it. So dropout inside attention is
    kept, too, which an export after `.eval()` does not hold.

    Raises InputError for anything else and where torch or apache-tvm is missing, and one UnsupportedError
    with the places of all that cannot be imported: operators, training mode, random numbers, changes of
    buffers or inputs, dimensions that are not constant.
    """
    torch = _installed("torch")
    if not isinstance(program, torch.export.ExportedProgram):
        kind = f"{type(program).__module__}.{type(program).__qualname__}"
        raise InputError(f"expected a torch.export.ExportedProgram, got {kind}")
    _installed("tvm")
    if training:
        program = inference_form(program)
    translator = import_module("tilewright.frontends.torch.translator")
    survey(program, None, training=training)
    weights = weights_of(program)
    program = _on_host(core_program(with_lasting_dropout(program)))
    survey(program, translator.operators(), training=training)
    relax = translator.translated(with_buffers_as_parameters(program))
    module = from_module(relax, weights.arrays, inputs=_inputs(program))
    _check_results(module, program)
    return weights.named(module)


def load(path: str | Path, *, training: bool = False) -> Module:
    """The graph-level module of a file written by `torch.export.save` (.pt2).

    The file is read by torch, which unpickles parts of it: read files of people you trust only. training: as
    of `from_exported`.
    Raises InputError where the file cannot be read, and as `from_exported`.
    """
    file = file_path(path)
    torch = _installed("torch")
    require_regular(path, "program")
    try:
        program = torch.export.load(str(file))
    except (*FAILURES, OSError, EOFError, BadZipFile) as error:
        raise InputError(
            f"expected a file written by torch.export.save: {_first_line(error)}", where=str(path)
        ) from error
    return from_exported(program, training=training)


def _on_host(program: Any) -> Any:
    """Move weights, constants and operators to the CPU, so that TVM needs no support for another device.

    `program` keeps its own tensors.
    """
    tensors = {*program.state_dict.values(), *program.constants.values()}
    places = {str(t.device) for t in tensors if hasattr(t, "device")}
    places |= {str(value.device) for value in output_values(program)}
    if places <= {"cpu"}:
        return program
    program = copy(program)
    program._state_dict = dict(program.state_dict)
    program._constants = dict(program.constants)
    return import_module("torch.export.passes").move_to_device_pass(program, "cpu")


def _installed(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(
            f"programs of torch.export need torch and apache-tvm: pip install 'tilewright[torch]' ({error})"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _inputs(program: Any) -> list[str]:
    """The names of the inputs that are tensors."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    return [spec.arg.name for spec in specs if type(spec.arg).__name__ == "TensorArgument"]


def _check_results(module: Module, program: Any) -> None:
    """Raise UnsupportedError where an output has not the type that torch gives it."""
    expected = [tensor_type(value) for value in output_values(program)]
    got = list(module.main.result_types)
    if got != expected:
        shown = [", ".join(map(str, types)) for types in (expected, got)]
        raise UnsupportedError(
            f"expected results {shown[0]} as torch says, got {shown[1]} from TVM's importer"
        )


def output_values(program: Any) -> list[Any]:
    """The example tensors of a program's user outputs."""
    (output,) = program.graph.find_nodes(op="output")
    return [node.meta["val"] for node in output.args[0] if hasattr(node, "meta")]


def tensor_type(value: Any) -> TensorType:
    """Our type of a torch tensor, real or fake."""
    return TensorType(dtype_name(str(value.dtype).removeprefix("torch.")), tuple(map(int, value.shape)))
