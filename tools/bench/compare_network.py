"""One row of the benchmark: a network at one batch and precision, Tilewright beside its peers."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

from tilewright.ir import Module
from tilewright.tools.bench.comparison import Entrants, Exact, Settings, compare
from tilewright.tools.bench.networks import random_batch, with_batch
from tilewright.tools.bench.rows import Row, one_line
from tilewright.tools.commands.network import read_network


@dataclass(frozen=True)
class Case:
    """What is compared: a network in a file, with shapes and constants as given, at a batch and precision.

    batch: the first extent of all inputs; None leaves every shape as it is.
    """

    path: Path
    batch: int | None
    precision: str
    shapes: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """The network's name: that of its file."""
        return self.path.stem

    def module(self) -> Module:
        """The network as imported, with random weights scaled by fan-in where the file has none."""
        return read_network(str(self.path), params="random", shapes=self.shapes, constants=self.constants)

    def row(self) -> Row:
        """The cells that name the row; no batch where the shapes say it."""
        return {"network": self.network, "batch": self.batch, "precision": self.precision}


def compare_network(case: Case, imported: Module, reference: Exact, settings: Settings) -> Row:
    """The row as plain data: `status` is ok, wrong or failed, with a `reason` where it is not ok.

    imported: the module of the case. Its batch, where none is given, is the first extent of the first input.
    """
    batch = case.batch
    row: Row = case.row()
    if batch is None:
        shape = imported.input_types[0].shape
        row["batch"] = shape[0] if shape else 1
    if settings.left_s() <= 0:
        return row | {"status": "failed", "reason": "the time limit was over"}
    try:
        module = with_batch(imported, batch)
        inputs = random_batch(module, settings.seed)
        return row | compare(
            module,
            inputs,
            case.precision,
            reference,
            settings,
            lambda peers: Entrants(peers.contenders(module, inputs)),
        )
    except Exception as e:  # noqa: BLE001 - a fault is a row with a reason, the other rows go on
        return row | {"status": "failed", "reason": one_line(e)}
    finally:
        gc.collect()
