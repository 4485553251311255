"""`tilewright explain --partitioners`: one row per partitioner."""

import json
from pathlib import Path

import pytest

from tilewright.passes.tensor.fusion.partitioners import PARTITIONERS
from tilewright.tools.cli import main

NETWORK = str(Path(__file__).parents[2] / "data" / "relay" / "lstm.relay")


def test_one_row_per_partitioner(capsys):
    assert main(["explain", NETWORK, "--partitioners", "--target", "cuda:sm_90a"]) == 0
    text = capsys.readouterr().out
    assert "sets of ops can be one kernel" in text
    assert all(f"\n{name} " in text for name in PARTITIONERS)
    assert text.count("cheapest of all partitions") == 1


def test_rows_as_json(capsys):
    assert main(["explain", NETWORK, "--partitioners", "--target", "cuda:sm_90a", "--json"]) == 0
    rows = {r["partitioner"]: r for r in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(PARTITIONERS)
    assert rows["exact"]["cheapest"]
    assert rows["none"]["kernels"] == rows["none"]["ops"]
    assert rows["exact"]["kernels"] <= rows["rules"]["kernels"] < rows["none"]["kernels"]
    least = min(r["estimate_s"] for r in rows.values())
    assert rows["exact"]["estimate_s"] == pytest.approx(least)
