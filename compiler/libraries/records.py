"""What a comparison with libraries came to, as the tuning database keeps it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.codegen.builders.cache import cache_key
from tilewright.costmodel import Hardware
from tilewright.ir import Func, Module
from tilewright.libraries.candidates import program_with
from tilewright.measuring.measurer import Measurer
from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.tuning.database.records import Choice

_NUMBERS = ("generated_s", "library_s", "candidates", "failed")
_FIELDS = (*_NUMBERS, "library", "whole", "fastest")


@dataclass(frozen=True)
class Record:
    """Seconds generated and with the fastest library kernel, who has that, how many were tried and refused.

    kernel: the library kernel that was taken, None where the generated one was. whole: whether all
    candidates were timed, so that a run with more time need not look again. fastest: seconds by library.
    """

    generated_s: float
    library_s: float | None
    library: str
    candidates: int
    failed: int
    kernel: LibraryKernel | None
    whole: bool = True
    fastest: dict[str, float] = field(default_factory=dict)

    def program(self, f: Func, hardware: Hardware) -> Module | None:
        """The program that takes the place of a kernel."""
        return None if self.kernel is None else program_with(f, self.kernel, hardware)

    def to_json(self) -> str:
        """One line."""
        data: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        return json.dumps({**data, "kernel": self.kernel and self.kernel.to_json()})

    @staticmethod
    def from_json(text: str) -> Record | None:
        """What `to_json` wrote; None for anything else."""
        try:
            data = json.loads(text)
            kernel = data.pop("kernel")
            record = Record(**data, kernel=kernel and LibraryKernel.from_json(kernel))
        except (ValueError, TypeError, KeyError, AttributeError, InputError):
            return None
        if not isinstance(record.fastest, dict):
            return None
        numbers = [*(getattr(record, name) for name in _NUMBERS), *record.fastest.values()]
        sound = all(x is None or (type(x) in (int, float) and math.isfinite(x) and x >= 0) for x in numbers)
        sound &= isinstance(record.library, str) and isinstance(record.whole, bool)
        return record if sound else None


class LibraryBook:
    """Records by kernel on one device, for these versions of the libraries."""

    def __init__(self, measurer: Measurer, versions: Mapping[str, str]) -> None:
        self._measurer = measurer
        self._versions = json.dumps(dict(versions), sort_keys=True)

    def recall(self, subject: str) -> Record | None:
        """What an earlier comparison came to."""
        found = self._measurer.database.choice(self._measurer.key(self._named(subject)))
        return None if found is None else Record.from_json(found.record)

    def keep(self, subject: str, record: Record) -> None:
        """Store what a comparison came to, unless the device tells no times."""
        if record.generated_s > 0.0:
            choice = Choice(record.to_json(), int(time.time()))
            self._measurer.database.put_choice(self._measurer.key(self._named(subject)), choice)

    def _named(self, subject: str) -> str:
        return "library:" + cache_key(self._versions, subject)
