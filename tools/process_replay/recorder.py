"""Runs inside one commit: compiles networks and writes what the compiler emitted and planned.

The parent starts this file by its path, with the import root of the commit. It uses only what every commit
has: `tw.frontends.relay.load`, `tw.compile`, `exe.plan`, and the texts of `exe.artifact` where there are
any. Nothing is built: in place of NVRTC stands a module that gives empty binaries, so no CUDA is needed.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import re
import struct
import sys
import time
from collections.abc import Mapping
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

#: registers that every kernel is said to take: the model of streams asks for them
REGISTERS = 64
_ENTRY = re.compile(rb"__global__[^;{]*?\bvoid\b[^;{(]*?(?:__\w+__\s*\([^)]*\)\s*)*(\w+)\s*\(")


def main() -> int:
    """Answer each line of standard input (one compilation as JSON) with one line; exit code 2: no access."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a commit prints is no answer
    root = sys.argv[1]
    # An editable installation would give its own files for modules that the commit does not have.
    sys.meta_path[:] = [
        f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")
    ]
    sys.path.insert(0, root)
    replace_nvrtc()
    import tilewright as tw

    try:
        load, compile_network = tw.frontends.relay.load, tw.compile
    except AttributeError as error:
        print(f"expected tw.compile and tw.frontends.relay.load in the commit, got: {error}", file=sys.stderr)
        return 2
    loaded: dict[tuple[Any, ...], Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = (request["path"], *(request["inputs"] or ()))
        if key not in loaded:
            loaded.clear()  # weights of one network at a time
            loaded[key] = load(request["path"], params="random", inputs=request["inputs"], seed=0)
        record = compiled(compile_network, loaded[key], request["target"], request["precision"])
        if foreign := outside(root):
            print(f"expected every module from {root}, got {foreign}", file=sys.stderr)
            return 2
        if request["file"]:
            write(request["file"], record)
        answers.write(json.dumps({k: record[k] for k in ("seconds", "cpu_seconds", "error")}) + "\n")
        answers.flush()
    return 0


def compiled(compile_network: Any, module: Any, target: str, precision: str) -> dict[str, Any]:
    """The record of one compilation: plan, digests of constants, texts, seconds; or its error."""
    wall, cpu = time.perf_counter(), time.process_time()
    record: dict[str, Any] = {"plan": None, "constants": {}, "texts": {}, "error": ""}
    exe = None
    try:
        exe = compile_network(module, target=target, precision=precision, progress=False)
    except Exception as error:  # noqa: BLE001 - whatever a commit raises is what it gives
        record["error"] = f"{type(error).__name__}: {error}"
    record["seconds"] = time.perf_counter() - wall
    record["cpu_seconds"] = time.process_time() - cpu
    if exe is not None:
        artifact = getattr(exe, "artifact", None)
        record["plan"] = plain(exe.plan)
        record["constants"] = digests(getattr(artifact, "constants", {}))
        record["texts"] = dict(getattr(artifact, "texts", {}))
    return record


def digests(constants: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each constant's bytes, by the name of its buffer."""
    arrays = ((name, np.ascontiguousarray(array)) for name, array in constants.items())
    return {
        name: hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()[:16] for name, array in arrays
    }


def plain(value: Any) -> Any:
    """Dataclasses, tuples and enumerations as JSON has them; binaries and their resources are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if f.name not in ("binary", "resources")]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def write(path: str, record: Mapping[str, Any]) -> None:
    """Write a record as compressed JSON; the file appears at once and whole."""
    part = f"{path}.{os.getpid()}.part"
    with gzip.open(part, "wt", encoding="utf-8", compresslevel=1) as file:
        json.dump(record, file)
    os.replace(part, path)


def read(path: str) -> dict[str, Any]:
    """Read a record that `write` wrote; raises OSError, EOFError or ValueError where it is damaged."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        record: dict[str, Any] = json.load(file)
    return record


def outside(root: str) -> str:
    """The file of a module of the package that does not come from the commit; empty where there is none."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.split(".")[0] == "tilewright" and file and not file.startswith(root + os.sep):
            return str(file)
    return ""


def replace_nvrtc() -> None:
    """Put a module in the place of `cuda.bindings.nvrtc` that compiles every text to an empty binary."""
    try:
        import cuda.bindings as bindings
    except ImportError:
        bindings = ModuleType("cuda.bindings")
        package = ModuleType("cuda")
        package.__path__, bindings.__path__ = [], []
        package.bindings = bindings  # type: ignore[attr-defined]
        sys.modules |= {"cuda": package, "cuda.bindings": bindings}
    nvrtc = unbuilt_nvrtc()
    bindings.nvrtc = nvrtc
    sys.modules["cuda.bindings.nvrtc"] = nvrtc


def unbuilt_nvrtc() -> ModuleType:
    """The functions of NVRTC that are used; a program is its text, its binary names the kernels of it."""
    ok = 0
    nvrtc: Any = ModuleType("cuda.bindings.nvrtc")
    nvrtc.nvrtcResult = SimpleNamespace(NVRTC_SUCCESS=ok, NVRTC_ERROR_COMPILATION=6)
    nvrtc.nvrtcVersion = lambda: (ok, 13, 0)
    nvrtc.nvrtcGetSupportedArchs = lambda: (ok, [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121])
    nvrtc.nvrtcGetErrorString = lambda status: (ok, b"an error of the replay")
    nvrtc.nvrtcCreateProgram = lambda source, *_: (ok, source)
    nvrtc.nvrtcCompileProgram = lambda program, *_: (ok,)
    nvrtc.nvrtcDestroyProgram = lambda program: (ok,)
    nvrtc.nvrtcGetProgramLogSize = lambda program: (ok, 1)
    nvrtc.nvrtcGetProgramLog = lambda program, text: (ok,)
    nvrtc.nvrtcGetCUBINSize = lambda program: (ok, len(empty_cubin(program)))

    def get_cubin(program: bytes, into: bytearray) -> tuple[int]:
        into[:] = empty_cubin(program)
        return (ok,)

    nvrtc.nvrtcGetCUBIN = get_cubin
    module: ModuleType = nvrtc
    return module


def empty_cubin(source: bytes) -> bytes:
    """An ELF file without code: a symbol for each kernel of the text, and the registers it takes, as said."""
    entries = _ENTRY.findall(source)
    names, symbols, info = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0), b""
    for index, entry in enumerate(entries, 1):
        symbols += struct.pack("<IBBHQQ", len(names), 1 << 4 | 2, 0, 0, 0, 0)  # a global function
        info += struct.pack("<BBHII", 0x04, 0x2F, 8, index, REGISTERS)  # its register count
        names += entry + b"\0"
    titles = b"\0.shstrtab\0.strtab\0.symtab\0.nv.info\0"
    bodies = (
        (b".shstrtab", 3, titles),
        (b".strtab", 3, names),
        (b".symtab", 2, symbols),
        (b".nv.info", 1, info),
    )
    headers, data, at = struct.pack("<IIQQQQIIQQ", *[0] * 10), b"", 64
    for title, kind, body in bodies:
        link, size = (2, 24) if title == b".symtab" else (0, 0)
        name = titles.index(title + b"\0")
        headers += struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, len(body), link, 0, 1, size)
        data, at = data + body, at + len(body)
    magic = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, at, 0, 64, 0, 0, 64, 1 + len(bodies), 1)
    return magic + head + data + headers


if __name__ == "__main__":
    raise SystemExit(main())
