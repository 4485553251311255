"""The forms of a step's runs as executables over one state: which of them the next run takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.passes.rewriting.run_forms import RunForms
from tilewright.running.state import StateStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.running.stateful import StatefulExecutable


@dataclass
class StepForms:
    """A step that has several forms: `forms.form` says by the count of runs which one is next.

    others: the executables of all forms but the one that has this, by number; that one is `own`, the form of
    the last run of a period. whole: makes an executable that decides by itself, which a file can hold.
    """

    forms: RunForms
    own: int
    others: Mapping[int, StatefulExecutable]
    whole: Callable[[], Any]
    _turn: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def turn(self, store: StateStore) -> Iterator[StatefulExecutable | None]:
        """The executable of the next run, None for the own one; leaving, the run has been counted.

        The count is read from the state where something else than these runs may have changed it.
        """
        counter = self.forms.counter
        with self._turn:
            count = store.counts.get(counter)
            if count is None:
                count = int(store.read(counter))
            yield self.others.get(self.forms.form(count))
            dtype = np.dtype(store.buffers[counter].dtype)
            bits = 8 * dtype.itemsize  # the device's count begins again there, too
            store.counts[counter] = (count + self.forms.by) % (1 << bits)

    def facts(self, own: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Of every form: in how many runs of a period it is taken, and what it communicates.

        own: the entry of the own form's report.
        """
        rows = []
        for number in dict.fromkeys(self.forms.forms):
            other = self.others.get(number)
            entry = own if other is None else other.report()["distributed"]
            moved = {k: entry[k] for k in ("communications", "bytes_communicated")}
            rows.append({"runs": self.forms.forms.count(number), **moved})
        return rows
