"""Networks imported on one machine and measured on another: their text travels, their weights do not.

A weight is drawn from its name and a seed (see `weights`), so a file holds the graph, for each of its
constants the name of the weight that it is (as it is or transposed), and the few arrays that are no weights:
tables of positions, masks, numbers.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, InputError, Module
from tilewright.ir.bounded_file import read_bounded
from tilewright.runtime.atomic_file import atomic_file
from tilewright.tools.foreign_bench.suite import TimedNetwork
from tilewright.tools.foreign_bench.weights import state_arrays

_TEXT, _NAMES, _ARRAYS = "module.ir", "weights.json", "arrays.npz"
#: larger files are refused unread
MAX_FILE_BYTES = 64 << 20


def module_of(network: TimedNetwork, net: Any, batch: int, folder: Path | None) -> Module:
    """The network as it comes in, at a batch, with the weights that `net` holds.

    net: what `network.build` gave, with its weights drawn. folder: where an earlier import is looked
    up; a file that does not fit the network is an InputError, and without one it is imported anew.
    """
    path = None if folder is None else _path(folder, network, batch)
    if path is not None and path.is_file():
        return read(path, net)
    return imported(network, net, batch)


def imported(network: TimedNetwork, net: Any, batch: int) -> Module:
    """The network by its way in; raises what PyTorch's exporter and the importer raise."""
    torch = import_module("torch")
    inputs = tuple(torch.from_numpy(x) for x in network.inputs(batch, 0))
    with redirect_stdout(io.StringIO()), torch.no_grad():
        if network.via == "onnx":
            # Unoptimised, so that weights are those of the network: the compiler folds them by itself.
            program = torch.onnx.export(net, inputs, dynamo=True, optimize=False, verbose=False)
            return tw.frontends.onnx.load(program.model_proto)
        return tw.frontends.torch.from_exported(torch.export.export(net, inputs))


def write(folder: Path, network: TimedNetwork, batch: int, module: Module, net: Any) -> Path:
    """Store a module without its weights; returns the file."""
    known: dict[str, tuple[str, bool]] = {}
    for name, array in state_arrays(net).items():
        if array.ndim == 2:
            known[_content(array.T)] = (name, True)
        known[_content(array)] = (name, False)
    bound: dict[str, tuple[str, bool]] = {}
    rest: dict[str, np.ndarray] = {}
    for name, array in module.constants.items():
        key = _content(array)
        if key in known and array.size > 1:
            bound[name] = known[key]
        else:
            rest[name] = array
    path = _path(folder, network, batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = io.BytesIO()
    # Names of constants may hold what a file's name may not.
    np.savez_compressed(arrays, **{str(i): a for i, a in enumerate(rest.values())})  # type: ignore[arg-type]
    head = {"weights": bound, "arrays": list(rest), "network": _identity(network)}
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_TEXT, tw.show(module.with_constants(Constants())))
        archive.writestr(_NAMES, json.dumps(head))
        archive.writestr(_ARRAYS, arrays.getvalue())
    return path


def read(path: Path, net: Any) -> Module:
    """The module of a file with the weights of `net`; raises InputError where they do not fit each other."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_bounded(path, MAX_FILE_BYTES, "imported network"))) as archive:
            module = tw.parse(archive.read(_TEXT).decode())
            head = json.loads(archive.read(_NAMES))
            arrays = np.load(io.BytesIO(archive.read(_ARRAYS)), allow_pickle=False)
            constants = {name: arrays[str(i)] for i, name in enumerate(head["arrays"])}
            bound = {name: (str(of), bool(turned)) for name, (of, turned) in head["weights"].items()}
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError) as e:
        raise InputError(
            f"expected an imported network of the suite foreign, got: {e}", where=str(path)
        ) from e
    return module.with_constants(Constants(constants | _weights(bound, state_arrays(net), path)))


def _weights(
    bound: Mapping[str, tuple[str, bool]], held: Mapping[str, np.ndarray], path: Path
) -> dict[str, np.ndarray]:
    missing = sorted({of for of, _ in bound.values()} - held.keys())
    if missing:
        raise InputError(
            f"expected a network with the weight '{missing[0]}': the file is of another one", where=str(path)
        )
    return {name: held[of].T if turned else held[of] for name, (of, turned) in bound.items()}


def _path(folder: Path, network: TimedNetwork, batch: int) -> Path:
    """The file of a network at a batch; another configuration under the same name has another file."""
    return folder / "networks" / f"{network.name}-b{batch}-{_identity(network)}.zip"


def _identity(network: TimedNetwork) -> str:
    parts = repr((network.kind, sorted(network.options.items()), network.feeds, network.via))
    return hashlib.sha256(parts.encode()).hexdigest()[:12]


def _content(array: np.ndarray) -> str:
    array = np.ascontiguousarray(array)
    return hashlib.sha256(f"{array.shape}{array.dtype}".encode() + array.tobytes()).hexdigest()
