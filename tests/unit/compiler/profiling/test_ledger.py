"""Ledgers: parts of a launch add up, nothing is invented where nobody tells, remedies are upper limits."""

import json
import types
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.emit.stamps import (
    ARRIVAL,
    DATA,
    END,
    LOOP,
    STAMPS_WITH_PHASES,
    START,
)
from tilewright.compilation.lowering import lower
from tilewright.costmodel import load_hardware
from tilewright.devices.targets import resolve_target
from tilewright.passes.analysis.work.weight_traffic import WeightBytes
from tilewright.profiling.ledger import PARTS, LedgerRow, modelled_ledger, phases_of, with_remedies
from tilewright.tools.cli import main

NET = """#[version = "0.0.5"]
def @main(%data: Tensor[(8, 256), float32], %w0: Tensor[(128, 256), float32],
          %w1: Tensor[(64, 128), float32]) -> Tensor[(8, 64), float32] {
  %0 = nn.dense(%data, %w0, units=128);
  %1 = nn.relu(%0);
  nn.dense(%1, %w1, units=64)
}
"""
X = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "two.relay"
    path.write_text(NET)
    return str(path)


def network(path):
    return tw.frontends.relay.load(path, params="random", inputs=("data",), seed=0)


def row_of_stamps(**columns):
    row = np.zeros(STAMPS_WITH_PHASES, np.uint64)
    for name, value in columns.items():
        row[{"arrival": ARRIVAL, "start": START, "data": DATA, "loop": LOOP, "end": END}[name]] = value
    return row


def test_parts_follow_the_block_that_ends_last_and_add_up():
    stamps = np.array(
        [
            row_of_stamps(arrival=90, start=100, data=300, loop=700, end=800),
            row_of_stamps(arrival=90, start=150, data=260, loop=900, end=1000),
        ]
    )
    parts = phases_of(stamps, types.SimpleNamespace(bounded=False))
    expected = {"spread_s": 50e-9, "first_load_s": 110e-9, "loop_s": 640e-9, "tail_s": 100e-9}
    assert parts == pytest.approx(expected)
    assert sum(parts.values()) == pytest.approx(900e-9)


def test_phases_that_no_block_reached_are_not_told():
    stamps = np.array([row_of_stamps(arrival=1, start=2, end=9)])
    assert set(phases_of(stamps, types.SimpleNamespace(bounded=False))) == {"spread_s"}
    assert phases_of(stamps, types.SimpleNamespace(bounded=True)) == {}


@pytest.mark.emulator
def test_ledger_of_stamps_on_the_emulator(net):
    with tw.compile(network(net), target="emulator:sm_90a", progress=False) as exe:
        before = exe(X)[0]
        ledger = exe.ledger(X, repeats=1)
        np.testing.assert_array_equal(exe(X)[0], before)
    assert ledger.clock == "stamps"
    assert any(r.first_load_s is not None for r in ledger.rows)
    for r in ledger.rows:
        told = [r.spread_s, r.first_load_s, r.loop_s, r.tail_s]
        assert sum(p for p in told if p is not None) + r.undivided_s == pytest.approx(r.seconds, abs=1e-12)
        assert r.boundary_s >= 0
        assert r.weights is not None
        assert r.remedies is None  # the clock of a CPU says nothing of a GPU


def test_ledger_of_events_tells_begin_and_end_alone(net):
    with tw.compile(network(net), target="opencl", progress=False) as exe:
        ledger = exe.ledger(X, repeats=2)
    assert ledger.clock == "events"
    assert set(ledger.totals()) == {"boundary_s", "undivided_s"}
    assert ledger.worth() == {}
    assert "nothing tells what happens inside" in str(ledger)
    for r in ledger.rows:
        assert (r.spread_s, r.first_load_s, r.loop_s, r.tail_s) == (None,) * 4
        assert r.undivided_s == r.seconds


def test_ledger_by_the_model_is_named_so_and_adds_up(net):
    lowered = lower(network(net), resolve_target("cuda:sm_90a"), precision="fp16")
    ledger = modelled_ledger(lowered.thread, lowered.records, lowered.target)
    assert "by the model, nothing measured" in str(ledger)
    assert set(ledger.totals()) < set(PARTS)
    assert "tail_s" not in ledger.totals()
    assert sum(ledger.totals().values()) == pytest.approx(ledger.replay_s)
    assert ledger.rows[0].boundary_s == 0.0
    hardware = lowered.target.hardware
    shorter = {True: hardware.relay.boundary_s, False: 0.0}
    assert {r.early for r in ledger.rows[1:]} == {True}  # two small launches have places side by side
    assert all(r.boundary_s == hardware.stream.boundary_s - shorter[r.early] for r in ledger.rows[1:])
    assert f"{sum(r.early for r in ledger.rows)} start early" in str(ledger)
    apart = lower(network(net), lowered.target, precision="fp16", relays="never")
    late = modelled_ledger(apart.thread, apart.records, apart.target)
    assert not any(r.early for r in late.rows)
    assert late.replay_s > ledger.replay_s
    assert all(r.remedies.relay_s <= r.seconds for r in ledger.rows)


def test_remedies_are_bounded_by_the_parts_they_shorten():
    h100 = load_hardware("h100")
    row = LedgerRow(1, "k", 33, 2e-6, 5e-6, 0.0, 1e-6, 3e-6, 1e-6, weights=WeightBytes(4_000_000, 2_000_000))
    cold = with_remedies(row, True, h100, False).remedies
    assert cold.edges_s == pytest.approx(2e-6 - h100.launch_floor_s)
    assert cold.relay_s == pytest.approx(2e6 / (h100.dram_bytes_per_s * h100.estimate_dram_efficiency))
    assert cold.splits_s == pytest.approx(4e-6 * (1 - 33 / 132) - h100.launch_floor_s)
    assert with_remedies(row, True, h100, True).remedies.relay_s < cold.relay_s  # warm weights cost less
    assert with_remedies(row, False, h100, False).remedies.relay_s == 0.0  # nothing before it to hide behind
    many = replace(row, weights=WeightBytes(10**9, 10**9))
    assert with_remedies(many, True, h100, False).remedies.relay_s == pytest.approx(4e-6)
    wide = replace(row, blocks=132)
    assert with_remedies(wide, True, h100, False).remedies.splits_s == 0.0


def test_explain_prints_ledgers_by_the_model_and_by_events(net, capsys, tmp_path):
    given = ["explain", net, "--ledger", "--json", "--target"]
    assert main([*given, "cuda:sm_90a:h100"]) == 0
    modelled = json.loads(capsys.readouterr().out)
    assert main([*given, "opencl"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["clock"] == "events"
    assert measured["worth_at_most"] == {}
    assert len(modelled["rows"]) == modelled["launches"]
    saved = str(tmp_path / "two.tw")
    assert main(["compile", net, "--params", "random", "--target", "opencl", "-o", saved]) == 0
    capsys.readouterr()
    assert main(["explain", saved, "--ledger"]) == 0
    assert "measured: begin and end of each launch" in capsys.readouterr().out
