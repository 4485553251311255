"""Parts that commands share: the network, its weights and its target; reading and making arrays."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import frontends
from tilewright.compilation.own_passes import named_passes
from tilewright.devices.opening import open_device
from tilewright.devices.targets import resolve_target
from tilewright.ir import ArrayType, InputError, Module, parse_file
from tilewright.ir.npz_file import NpzFile
from tilewright.measuring.budget import budget_seconds
from tilewright.passes.graph.forms.set_input_shapes import with_input_shapes
from tilewright.running.executable import Executable
from tilewright.running.loading import load
from tilewright.running.shaped import ShapedExecutable
from tilewright.tools.arguments.scope import ZOO

#: files that hold their weights and name their inputs
BUNDLED = (".onnx", ".pt2")
#: the `;` after a shape; names may hold one
_BETWEEN_SHAPES = re.compile(r"(?<=[0-9=]);")


def choices_of(a: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `tilewright.compile` that `add_choice_arguments` defines."""
    return {
        "precision": a.precision,
        "tune": a.tune,
        "tuning_db": a.tuning_db,
        "budget": budget_seconds(a.budget, where="--budget"),
        "conv_algorithm": a.conv_algorithm,
        "workspace": a.workspace,
        "partitioner": a.partitioner,
        "layouts": a.layouts,
        "streams": a.streams,
        "relays": a.relays,
        "libraries": not a.no_libraries,
        **passes_of(a),
    }


def passes_of(a: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `tilewright.compile` that `add_pass_arguments` defines."""
    return {"passes": named_passes(a.imports, a.pass_pipeline), "verify_each": a.verify_each}


def load_network(a: argparse.Namespace, *, training: bool = False) -> Module:
    """The graph-level module that the arguments of `add_network_arguments` name; raises InputError.

    training: it is to be trained, so a program may have been exported in training mode.
    """
    inputs = tuple(a.inputs.split(",")) if a.inputs else None
    return read_network(
        a.network,
        params=a.params,
        inputs=inputs,
        seed=a.seed,
        shapes=a.shape,
        constants=a.constant,
        training=training or a.training_mode,
    )


def read_network(
    network: str,
    *,
    params: str | None = None,
    inputs: Sequence[str] | None = None,
    seed: int = 0,
    shapes: Sequence[str] = (),
    constants: Sequence[str] = (),
    training: bool = False,
) -> Module:
    """The graph-level module of a file or of the zoo; raises InputError.

    params, inputs: weights of Relay networks and the parameters that have none (see `frontends.relay.load`).
    seed: of random weights. shapes, constants: what `--shape` and `--constant` were given. training: as of
    `frontends.torch.load`.
    """
    if network.startswith(ZOO):
        reject_constants(constants)
        built = frontends.zoo.build(network.removeprefix(ZOO), seed=seed)
        return with_input_shapes(built, dict(map(parse_shape, shapes)))
    path = Path(network)
    if path.suffix == ".tw":
        raise InputError(
            "expected a network, got a saved executable: `tilewright run`, `report` and `explain` take those",
            where=str(path),
        )
    if not os.path.exists(path):  # unlike the method, also False for names that are too long
        raise InputError("no such file", where=f"{path!s:.200}")
    if path.suffix == ".onnx":
        return load_bundled(path, shapes, constants)
    reject_constants(constants)
    if path.suffix in BUNDLED:
        written = frontends.torch.load(path, training=training)
    else:
        written = _as_written(path, params, inputs, seed)
    return with_input_shapes(written, dict(map(parse_shape, shapes)))


def _as_written(path: Path, params: str | None, inputs: Sequence[str] | None, seed: int) -> Module:
    """The module of a file of our IR or Relay, with the shapes it names itself."""
    if path.suffix == ".ir":
        return parse_file(path)
    return frontends.relay.load(str(path), params=params, inputs=inputs, seed=seed)


def require_device(target: str) -> None:
    """Raise WorkError where the device is missing that kernels are to run on, before they are compiled."""
    resolved = resolve_target(target)
    if resolved.kind != "reference":
        open_device(str(resolved)).close()


def load_saved(a: argparse.Namespace) -> Executable:
    """The saved executable the arguments name; of one with several plans that for `--shape`, if given."""
    exe = load(a.network, a.target)
    if not a.shape:
        return exe
    if not isinstance(exe, ShapedExecutable):
        raise InputError(
            "expected a network: a saved executable with one plan keeps its shapes", where="--shape"
        )
    return exe.select(dict(map(parse_shape, a.shape)))


def load_bundled(
    path: Path, shapes: Sequence[str], constants: Sequence[str] = (), *, training: bool = False
) -> Module:
    """An ONNX file with the given `--shape` and `--constant` arguments, or a file of torch.export.save.

    training: as of `frontends.torch.load`.
    """
    if path.suffix == ".onnx":
        return frontends.onnx.load(
            path, shapes=dict(map(parse_shape, shapes)), constants=dict(map(parse_constant, constants))
        )
    reject_shapes(shapes)
    reject_constants(constants)
    return frontends.torch.load(path, training=training)


def reject_shapes(shapes: Sequence[str]) -> None:
    """Raise InputError for `--shape` where a network is shown as it is written."""
    if shapes:
        raise InputError(
            "expected an ONNX file: other networks are shown with their own shapes", where="--shape"
        )


def reject_constants(constants: Sequence[str]) -> None:
    """Raise InputError for `--constant` where a network is no ONNX file."""
    if constants:
        raise InputError("expected an ONNX file: inputs of other networks are not fixed", where="--constant")


def parse_constant(text: str) -> tuple[str, Any]:
    """Name and value of `sr=16000`, `axes=0,1` (`axes=` for none) or `causal=true`; raises InputError."""
    name, sign, values = text.rpartition("=")
    try:
        numbers = [_number(v.strip()) for v in values.split(",")] if values else []
    except ValueError:
        sign = ""
    if not name or not sign:
        raise InputError(f"expected NAME=V,V,... with numbers, got '{text}'", where="--constant")
    return name, numbers[0] if len(numbers) == 1 else numbers


def _number(text: str) -> int | float | bool:
    """A whole number, another number, true or false; raises ValueError."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes by input name of `x=1,3,224,224; mask=1,64`; raises InputError."""
    parts = _BETWEEN_SHAPES.split(text)
    return dict(parse_shape(part.strip(), where="--shapes") for part in parts)


def parse_shape(text: str, *, where: str = "--shape") -> tuple[str, tuple[int, ...]]:
    """Name and extents of `x=1,3,224,224` (`x=` for a scalar); raises InputError."""
    name, sign, extents = text.rpartition("=")
    try:
        shape = tuple(int(n) for n in extents.split(",")) if extents else ()
    except ValueError:
        sign = ""
    if not name or not sign:
        raise InputError(f"expected NAME=N,N,... with integers, got '{text}'", where=where)
    return name, shape


def read_inputs(path: str, names: Sequence[str], types: Sequence[ArrayType]) -> list[np.ndarray]:
    """Arrays of an .npz file, by input name; raises InputError naming every missing and every wrong one."""
    file = NpzFile(path)
    missing = [n for n in names if n not in file.headers]
    if missing:
        raise InputError(
            f"expected arrays named {', '.join(names)}; missing {', '.join(missing)}", where=path
        )
    stored = [ArrayType(h.shape, h.dtype.name) for h in map(file.headers.__getitem__, names)]
    wrong = [f"'{n}' is {got}, not {t}" for n, t, got in zip(names, types, stored, strict=True) if got != t]
    if wrong:
        raise InputError(f"expected the inputs of the network: {'; '.join(wrong)}", where=path)
    arrays = file.read(names)
    return [arrays[n] for n in names]
