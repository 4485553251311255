"""The benchmark as one JSON document, written after each row: how it was measured, rows, summary."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.ir import InputError
from tilewright.ir.bounded_file import read_bounded
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.bench.rows import Row, summary

FORMAT = "tilewright bench 1"
#: files larger than this are refused unread
MAX_FILE_BYTES = 256 << 20


class Document:
    """Rows as they come. Where a path is given, the file holds all rows so far after every one of them."""

    def __init__(self, protocol: Mapping[str, Any], path: str | None = None) -> None:
        self.rows: list[Row] = []
        self.kernels: list[Row] = []
        self._path = Path(path) if path else None
        self._head = {
            "format": FORMAT,
            "tilewright": tw.__version__,
            "python": platform.python_version(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "protocol": dict(protocol),
        }
        self.write()

    def add(self, row: Row) -> None:
        """Append a row of a network and write."""
        self.rows.append(row)
        self.write()

    def add_kernel(self, row: Row) -> None:
        """Append a row of a kernel and write."""
        self.kernels.append(row)
        self.write()

    def data(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {**self._head, "rows": self.rows, "kernels": self.kernels, "summary": summary(self.rows)}

    def write(self) -> None:
        """Replace the file, at once; raises InputError where that is impossible."""
        if self._path is not None:
            write_atomically(self._path, json.dumps(self.data(), indent=1, default=str))


def read_document(path: str) -> dict[str, Any]:
    """Read a file that `Document` wrote; raises InputError for anything else."""
    try:
        data = json.loads(read_bounded(path, MAX_FILE_BYTES, "file of tilewright bench").decode())
    except (ValueError, RecursionError) as e:
        raise InputError(f"expected a file of tilewright bench: {e}", where=path) from e
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"expected a file of the format '{FORMAT}'", where=path)
    return data
