"""What `irdump` reads: our IR or a network, from a file or stdin, with its head comments."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.frontends import relay
from tilewright.frontends.relay.importer import import_module
from tilewright.frontends.relay.load import read_source
from tilewright.ir import InputError, Module, parse, parse_file
from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.modules.parser import MAX_BYTES, decode
from tilewright.passes import read_header
from tilewright.passes.kernels.decision import check_decisions
from tilewright.tools.commands.network import BUNDLED, load_bundled, reject_constants, reject_shapes

_STDIN = "<stdin>"
_RELAY_SUFFIXES = {".relay", ".json", ".rly"}


@dataclass(frozen=True)
class Source:
    """A module, the name of where it came from, and what its head comments say (`pipeline`, `target`)."""

    module: Module
    name: str
    header: Mapping[str, str] = field(default_factory=dict)


def read_source_file(
    name: str,
    params: str | None = None,
    inputs: Sequence[str] | None = None,
    seed: int = 0,
    shapes: Sequence[str] = (),
    constants: Sequence[str] = (),
) -> Source:
    """Read a file, or stdin for `-`. Files without a telling suffix are told apart by content.

    params, inputs, seed: as in `relay.load`; an error for what is no Relay. shapes, constants: `--shape` and
    `--constant` arguments, for ONNX files. Raises InputError.
    """
    path = Path(name)
    if path.suffix in BUNDLED:
        if params is not None or inputs is not None:
            raise InputError("--params and --inputs are for Relay networks", where=name)
        return Source(load_bundled(path, shapes, constants), name)
    reject_shapes(shapes)
    reject_constants(constants)
    text = _stream(path)
    if path.suffix in _RELAY_SUFFIXES or not _is_ours(path, text):
        return Source(_relay(path, text, params, inputs, seed), _shown(name))
    if params is not None or inputs is not None:
        raise InputError("--params and --inputs are for Relay networks, this is IR", where=name)
    if text is not None:
        return Source(
            _checked(parse(text, where=_shown(name)), _shown(name)), _shown(name), read_header(text)
        )
    return Source(_checked(parse_file(path), name), name, read_header(_head(path)))


def _checked(module: Module, name: str) -> Module:
    """The module, after its decisions on kernels were found to fit their templates; raises InputError."""
    check_decisions(module, name)
    return module


def _shown(name: str) -> str:
    return _STDIN if name == "-" else name


def _stream(path: Path) -> str | None:
    """Text of stdin or of a pipe, of bounded length; None for files and what does not exist."""
    if str(path) == "-":
        return decode(sys.stdin.buffer.read(MAX_BYTES + 1), _STDIN)
    if not path.exists() or path.is_file() or path.is_dir():
        return None
    return decode(read_bounded(path, MAX_BYTES, "file"), str(path))


def _is_ours(path: Path, text: str | None) -> bool:
    if path.suffix == ".ir":
        return True
    for line in (_head(path) if text is None else text).splitlines():
        stripped = line.strip()
        if stripped and (not stripped.startswith("#") or stripped.startswith("#[")):
            return stripped.startswith("module")
    return False


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(1 << 16).decode("utf-8", errors="replace").removeprefix("\ufeff")
    except OSError as e:
        raise InputError(f"cannot read the file: {e.strerror}", where=str(path)) from e


def _relay(
    path: Path, text: str | None, params: str | None, inputs: Sequence[str] | None, seed: int
) -> Module:
    if text is None:
        return relay.load(path, params, inputs, seed)
    return import_module(read_source(text, _shown(str(path))), params, inputs, seed)
