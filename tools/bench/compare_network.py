"""One row of the benchmark: a network at one batch and precision, Tilewright beside its peers."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from tilewright.ir import Module
from tilewright.tools.bench.comparison import Entrants, Settings, compare
from tilewright.tools.bench.networks import random_batch, with_batch
from tilewright.tools.bench.reference import Reference
from tilewright.tools.bench.rows import Row, one_line


@dataclass(frozen=True)
class Case:
    """What is compared: a network by name, its module as imported, batch and precision."""

    network: str
    module: Module
    batch: int
    precision: str


def compare_network(case: Case, reference: Reference, settings: Settings) -> Row:
    """The row as plain data: `status` is ok, wrong or failed, with a `reason` where it is not ok."""
    row: Row = {"network": case.network, "batch": case.batch, "precision": case.precision}
    if settings.left_s() <= 0:
        return row | {"status": "failed", "reason": "the time limit was over"}
    try:
        module = with_batch(case.module, case.batch)
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
