"""Reproducers: an `.ir` file (and its constants where they are small) that reruns a failing pass."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from tilewright.ir.constants import save_constants
from tilewright.ir.errors import InputError
from tilewright.ir.modules.parser import parse_file
from tilewright.ir.modules.printer import show
from tilewright.ir.nodes import Module
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.pipeline import Pipeline

MAX_CONSTANT_BYTES = 64 << 20
_HEADER = re.compile(r"^#\s*(pipeline|target):\s*(.*)$")


def write_reproducer(
    module: Module, pipeline: Pipeline, ctx: PassContext, message: str, folder: Path
) -> Path:
    """Write the module as it was before the failing pass, named by its content; returns the path.

    Constants above 64 MiB together are left out: the file then holds their names and types only.
    """
    header = [f"# {line}" for line in message.splitlines()]
    nbytes = sum(a.nbytes for a in module.constants.values())
    if nbytes > MAX_CONSTANT_BYTES:
        header.append(f"# constants: left out ({nbytes} bytes)")
    header += [f"# target: {ctx.target}", f"# pipeline: {pipeline}"]
    text = "\n".join(header) + "\n" + show(module)
    name = f"{pipeline.passes[0].name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ir"
    if module.constants and nbytes <= MAX_CONSTANT_BYTES:
        with _Whole(path.with_suffix(".safetensors")) as part:
            save_constants(module.constants, part.path)
    with _Whole(path) as part:
        part.path.write_text(text, encoding="utf-8")
    return path


def read_header(text: str) -> dict[str, str]:
    """`pipeline` and `target` from the comments at the head of an `.ir` text, where it has them."""
    entries: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        m = _HEADER.match(line)
        if m:
            entries[m[1]] = m[2].strip()
    return entries


def read_reproducer(path: Path) -> tuple[Module, Pipeline, PassContext]:
    """Module, pipeline and context of a reproducer file; raises InputError where it names no pipeline."""
    module = parse_file(path)
    header = read_header(path.read_text(encoding="utf-8"))
    if "pipeline" not in header:
        raise InputError("expected a comment '# pipeline: ...' at the head of the file", where=str(path))
    target = header.get("target", PassContext.target)
    return module, Pipeline.parse(header["pipeline"], where=str(path)), PassContext(target)


class _Whole:
    """A temporary file beside `path` that takes its place only when all of it is written."""

    def __init__(self, path: Path) -> None:
        self.target = path
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-", suffix=path.suffix)
        os.close(handle)
        self.path = Path(name)

    def __enter__(self) -> _Whole:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.path.replace(self.target)
        else:
            self.path.unlink(missing_ok=True)
