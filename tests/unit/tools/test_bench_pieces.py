"""Pieces of the benchmark: statistics, ratios, order of timing, references, inputs, tables, files, plots."""

import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import InputError
from tilewright.tools.arguments.bench import KERNELS
from tilewright.tools.bench import comparison
from tilewright.tools.bench.comparison import Entrants, ExactReference, Settings, compare, errors, is_right
from tilewright.tools.bench.contender import TimeSpread, geometric_mean, interleaved, repeats_within
from tilewright.tools.bench.document import Document, read_document
from tilewright.tools.bench.kernel_cases import kernel_cases
from tilewright.tools.bench.networks import index_bounds, random_batch, with_batch
from tilewright.tools.bench.rows import better_peer, judged, summary
from tilewright.tools.bench.table import document_text
from tilewright.tools.commands.network import read_network
from tilewright.tools.reproduce_readme import conformance_table, replays_table


def timed(peer, ms, variant=""):
    return {"peer": peer, "variant": variant, "median_ms": ms, "p10_ms": ms, "p90_ms": ms}


def row(network, ms, peers, batch=1, precision="fp32"):
    ours = [timed("tilewright", ms), timed("tilewright", 2 * ms, "no libraries")]
    told = judged(ours, peers)
    return {"network": network, "batch": batch, "precision": precision, "status": "ok", **told} | {
        "ours": ours,
        "peers": peers,
    }


def test_spread_is_median_and_percentiles():
    spread = TimeSpread.of([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (spread.median_s, spread.count) == (3.0, 5)
    assert (spread.p10_s, spread.p90_s) == pytest.approx((1.4, 4.6))


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_repeats_fit_a_budget():
    assert repeats_within(0.05, 0.001, least=3, most=10) == 10
    assert repeats_within(0.05, 0.01, least=3, most=10) == 5
    assert repeats_within(0.05, 1.0, least=3, most=10) == 3
    assert repeats_within(0.05, 0.0, least=3, most=10) == 10


def test_the_better_peer_is_the_fastest_of_all_variants():
    peers = [
        timed("torch-graph", 3.0, "contiguous"),
        timed("torch-graph", 1.5, "channels_last"),
        timed("torch-compile", 2.0, "contiguous"),
        {"peer": "torch-compile", "variant": "channels_last", "reason": "failed"},
    ]
    assert better_peer(peers)["variant"] == "channels_last"
    told = judged([timed("tilewright", 1.0), timed("tilewright", 3.0, "no libraries")], peers)
    assert told["best_peer"] == "torch-graph channels_last"
    assert told["ratio"] == 1.5
    assert told["ratios"] == {"torch-graph": 1.5, "torch-compile": 2.0}
    assert told["ratio_by_variant"] == {"": 1.5, "no libraries": 0.5}
    assert judged([timed("tilewright", 1.0)], peers[3:])["ratio"] is None
    assert judged([{"peer": "tilewright", "variant": "", "reason": "wrong"}], peers)["ratio"] is None


def test_summary_groups_by_batch_and_precision():
    rows = [
        row("a", 1.0, [timed("torch-graph", 4.0)]),
        row("b", 1.0, [timed("torch-graph", 1.0), timed("torch-eager", 9.0)]),
        row("c", 1.0, []),
        row("a", 1.0, [timed("torch-graph", 3.0)], batch=64),
    ]
    first, second = summary(rows)
    assert (first["batch"], first["networks"], first["without_ratio"]) == (1, 2, 1)
    assert first["geometric_mean"] == pytest.approx(2.0)
    assert (first["least"], first["least_network"]) == (1.0, "b")
    assert first["by_peer"] == pytest.approx({"torch-graph": 2.0, "torch-eager": 9.0})
    assert first["by_variant"] == pytest.approx({"": 2.0, "no libraries": 1.0})
    assert (second["batch"], second["geometric_mean"]) == (64, pytest.approx(3.0))


class Counting:
    """A contender that notes when it was asked."""

    variant, prepare_s, facts = "", 0.0, {}

    def __init__(self, peer, calls, seconds):
        self.peer, self.calls, self.seconds = peer, calls, seconds

    def device_times(self, repeats):
        self.calls.append(self.peer)
        return [self.seconds] * repeats

    def wall_times(self, repeats):
        return [2 * self.seconds] * repeats


def test_rounds_take_turns():
    calls = []
    contenders = [Counting("a", calls, 1e-4), Counting("b", calls, 0.02)]
    first, second = interleaved(contenders, rounds=4, most=7)
    assert all(x != y for x, y in pairwise(calls))
    assert len(first.device) == 4 * 7  # short: as many as asked for
    assert len(second.device) == 4 * 3  # long: what fits
    assert first.wall == [2e-4] * 12


class Exactly:
    """A reference to which every result is right."""

    def error(self, inputs, outputs):
        return 0.0


@pytest.mark.parametrize(("tune", "alone"), [("measure", ["ours", "times"]), ("model", ["times"])])
def test_what_searches_by_measuring_is_alone(monkeypatch, tune, alone):
    happened = []

    class Ours(Counting):
        def __init__(self, module, inputs, options, clock, variant):
            super().__init__("tilewright", [], 1e-4)
            happened.append("ours")

        def outputs(self):
            return [np.ones(4)]

        def device_times(self, repeats):
            happened.append("times")
            return [1e-4] * repeats

        def close(self):
            happened.append("closed")

    @contextmanager
    def turn():
        happened.append("(")
        yield
        happened.append(")")

    monkeypatch.setattr(comparison, "Ours", Ours)
    settings = Settings({"": {"tune": tune, "budget": "5s"}}, (), 1, 1, False, 1.0, 0, lambda: 9.0, turn=turn)
    row = compare(None, [], "fp32", Exactly(), settings, lambda peers: Entrants())
    assert row["status"] == "ok"
    within = happened[happened.index("(") + 1 : happened.index(")")]
    assert list(dict.fromkeys(within)) == alone
    assert happened.count("ours") == happened.count("closed") == 1
    assert settings.turn_s == (24.0 if tune == "measure" else 4.0)


def test_whole_results_are_held_against_a_right_contender():
    right, sampled, wrong = np.ones(4), np.array([1.0, 9.0, 1.0, 1.0]), np.zeros(4)
    checks = errors([[right], [sampled], [wrong], [right]], [0.0, 0.0, 1.0, 0.0], limit=1e-3)
    assert [is_right(c, 1e-3) for c in checks] == [True, False, False, True]
    assert "difference" not in checks[3]
    (alone,) = errors([[right]], [0.0], limit=1e-3)
    assert alone == {"relative_error": 0.0}
    assert not is_right({"relative_error": float("nan")}, 1.0)


def test_first_and_last_sample_are_checked(data_dir):
    module = read_network(str(data_dir / "relay" / "mlp.relay"), params="random")
    batch = with_batch(module, 5)
    inputs = random_batch(batch, seed=3)
    (y,) = tw.interpret(batch, *inputs)
    reference = ExactReference(module)
    assert reference.error(inputs, [y]) < 1e-5
    for sample, found in ((0, True), (2, False), (4, True)):
        changed = y.copy()
        changed[sample] += 0.1
        assert (reference.error(inputs, [changed]) > 1e-2) == found
    assert reference.error(inputs, [np.full_like(y, np.nan)]) == float("inf")


def test_larger_batches_begin_like_smaller_ones(data_dir):
    module = read_network(str(data_dir / "relay" / "mlp.relay"), params="random")
    (small,), (large,) = (random_batch(with_batch(module, n), seed=0) for n in (2, 5))
    np.testing.assert_array_equal(small, large[:2])
    assert abs(large.std() - 1.0) < 0.1


def test_indices_stay_within_their_tables():
    module = tw.parse(
        "module @m { graph.func @main(%t: f32[7, 4], %i: i64[2, 3], %n: i32[2]) -> f32[2, 3, 4], i32[2] {"
        ' %j = graph.cast(%i, dtype = "i32") : i32[2, 3]'
        " %y = graph.take(%t, %j, axis = 0) : f32[2, 3, 4] graph.return(%y, %n) } }"
    )
    _, i, _ = module.main.params
    assert index_bounds(module) == {i: 7}
    _, indices, _ = random_batch(module, seed=0)
    assert indices.max() < 7


@pytest.mark.parametrize("case", kernel_cases(KERNELS, [16], ["fp32", "tf32", "fp16", "bf16"]), ids=str)
def test_kernels_compute_what_they_say(case):
    small = case.module(2)
    arrays = random_batch(small, seed=0)
    (y,) = tw.interpret(small, *arrays, precision="fp64")
    assert y.shape[0] == 2
    assert np.isfinite(y).all()
    main = case.module().main
    moved = sum(v.tensor.nbytes for v in (*main.params, *main.body.ops[-1].operands))
    assert case.moved_bytes == moved
    assert case.flops or moved > 100e6  # beyond every L2 cache


def test_documents_are_read_back(tmp_path):
    path = tmp_path / "bench.json"
    document = Document({"l2": "cold"}, str(path))
    assert read_document(str(path))["rows"] == []
    document.add(row("a", 1.0, [timed("torch-graph", 4.0)]))
    data = read_document(str(path))
    assert data["summary"][0]["geometric_mean"] == pytest.approx(4.0)
    text = document_text(data)
    assert "| a | 1 | fp32 | 1.000 | 4.000 | 4.00 |" in text
    assert "| least | ratio, no libraries | over torch-graph |" in text
    assert "| 1 | fp32 | 1 | 4.00 | 4.00 (a) | 2.00 | 4.00 |" in text
    path.write_text("{}")
    with pytest.raises(InputError, match="format"):
        read_document(str(path))


def test_the_plot_is_svg_with_every_ratio(tmp_path):
    pytest.importorskip("matplotlib")
    from tilewright.tools.bench.plot import write_plot

    rows = [row("a", 1.0, [timed("torch-graph", 4.25)]), row("b", 1.0, [], precision="fp16")]
    path = tmp_path / "bench.svg"
    write_plot({"rows": rows}, str(path))
    text = path.read_text()
    ElementTree.fromstring(text)
    assert ">4.25<" in text
    assert "no ratio" in text
    with pytest.raises(InputError, match="cannot write"):
        write_plot({"rows": rows}, str(tmp_path / "no" / "bench.svg"))


def test_tables_of_the_readme():
    replayed = {
        "network": "some/net.relay",
        "launches": 9,
        "step_by_step_us": 30.4,
        "queued_steps_us": 20.6,
        "microseconds": {"serial": 11.0, "auto": 10.2},
        "streams": {"count": 2},
    }
    assert replays_table([replayed]).splitlines()[2] == "| net | 9 | 30 | 21 | 11 | 10 | 2 |"
    results = [{"suite": "s", "target": "t", "status": x} for x in ("passed", "failed")]
    assert conformance_table(results).splitlines()[2] == "| s | t | 2 | 1 |"
