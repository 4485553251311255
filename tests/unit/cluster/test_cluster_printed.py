"""The printed model and the reading of it behind Table 5.6: every number that is known of them."""

from dataclasses import replace
from math import log2

import numpy as np
import pytest

from tilewright.costmodel.cluster import evaluate, load_cluster, load_model, load_training, search, table_rows
from tilewright.costmodel.cluster.modes.search import NORMALISERS_S
from tilewright.ir.errors import InputError, UnsupportedError

BLOCKS = sorted(NORMALISERS_S)
#: L, d, s, B and BW_S, BW_P2P in GB/s
DIMENSIONS = {"GPT-3": (96, 12288, 2048, 320000), "T-NLG": (78, 4256, 1024, 512)}
RATES = {"A": (4, 16), "B": (1.6, 100)}


@pytest.fixture(scope="module")
def table():
    return {
        (r["model"], r["cluster"], r["schedule"], r["dp"], r["wp"], r["p"]): r["normalized"]
        for r in table_rows()
    }


def cell_by_hand(model, cluster, column, dp, tp, p):
    """One cell by the decoded reading, term by term."""
    layers, d, s, batch = DIMENSIONS[model]
    storage, link = (1e9 * rate for rate in RATES[cluster])
    ops, param, act = 2 * layers, 6 * d * d, 1.5 * d * s
    fetch_activations = 4 * act * ops * batch / (dp * p)
    fetch_parameters = 2 * param * ops * batch / (tp * p)
    opt = 8 * 4 * param * ops / (tp * p)
    between = (
        2 * (ops / p) * (act / dp) * log2(tp) * batch + 2 * (param / tp) * log2(dp) + 2 * (act / dp) * batch
    )
    if column == "AR":
        return (fetch_activations + opt) / storage + between / link
    return (fetch_parameters + opt) / link + between / storage


def test_the_table_has_its_144_cells(table):
    assert len(table) == 144
    assert sum(key[0] == "GPT-3" for key in table) == 84
    assert all(dp * tp * p == 32 for *_, dp, tp, p in table)
    assert max(p for model, *_, p in table if model == "T-NLG") == 4


def test_rows_of_the_table_are_plain_and_ordered():
    rows = table_rows()
    assert all(
        list(row) == ["model", "cluster", "schedule", "dp", "wp", "p", "normalized"]
        and type(row["normalized"]) is float
        for row in rows
    )
    assert rows == table_rows()


def test_every_cell_follows_from_the_decoded_reading(table):
    for (model, cluster, *rest), value in table.items():
        assert value == pytest.approx(
            cell_by_hand(model, cluster, *rest) / NORMALISERS_S[model, cluster], rel=1e-12
        )


@pytest.mark.parametrize(
    ("cell", "printed", "tolerance"),
    [
        (("GPT-3", "A", "PR", 32, 1, 1), 95.17, 0.0001),
        (("GPT-3", "B", "AR", 1, 32, 1), 121.69, 0.0001),
        (("GPT-3", "B", "PR", 1, 1, 32), 1.0, 0.007),
        # the print has these two exchanged
        (("T-NLG", "A", "AR", 8, 1, 4), 1.0, 0.0005),
        (("T-NLG", "A", "AR", 4, 2, 4), 1.07, 0.001),
        # cells that no printed term produces: the reading's own value, up to 32 % beside the print
        (("GPT-3", "A", "AR", 1, 1, 32), 1.013, 0.001),
        (("GPT-3", "A", "AR", 16, 1, 2), 1.002, 0.001),
        (("GPT-3", "A", "AR", 8, 1, 4), 0.999, 0.001),
        (("GPT-3", "A", "PR", 1, 1, 32), 3.057, 0.001),
    ],
)
def test_known_cells(table, cell, printed, tolerance):
    assert table[cell] == pytest.approx(printed, rel=tolerance)


@pytest.mark.parametrize(("cluster", "pp"), [("A", 0.0826), ("B", 0.3048)])
def test_column_pr_without_weight_partition_is_alpha_over_p(table, cluster, pp):
    """Parameter traffic knows no DP: without the stage transfer pp / DP the column is alpha / P."""
    alpha = [
        p * (table["GPT-3", cluster, "PR", dp, 1, p] - pp / dp)
        for dp, p in [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1)]
    ]
    assert np.ptp(alpha) < 1e-4 * np.mean(alpha) + 0.01 * pp * 32


@pytest.mark.parametrize(("cluster", "ratio"), [("A", 4.0), ("B", 62.5)])
def test_both_columns_have_the_same_weight_term_up_to_the_bandwidths(cluster, ratio):
    """In column PR it is a/2 WP log2 WP, in column AR that times BW_S / BW_P2P."""
    model, training = load_model("GPT-3"), load_training("GPT-3-table")
    found = evaluate(load_cluster(cluster), model, training, "table")
    c, tp = found.configurations, found.components_s["wp"]
    by_key = {(c.row(i)["schedule"], c.row(i)["dp"], c.row(i)["wp"]): tp[i] for i in range(len(c))}
    a = by_key["PR", 1, 2] / (2 * log2(2))
    for (schedule, _, width), seconds in by_key.items():
        assert seconds == pytest.approx(a * width * log2(width) / (1 if schedule == "PR" else ratio))


@pytest.mark.parametrize(
    ("block", "share", "tolerance"),
    [(("T-NLG", "A"), 2.698, 0.004), (("T-NLG", "B"), 7.410, 0.004),
     (("GPT-3", "A"), 0.019, 0.006), (("GPT-3", "B"), 0.065, 0.006)],
)  # fmt: skip
def test_optimizer_share_in_column_ar(block, share, tolerance):
    """As fitted to the print, whose cells are rounded to 0.01."""
    model, cluster = block
    found = evaluate(load_cluster(cluster), load_model(model), load_training(f"{model}-table"), "table")
    c = found.configurations
    ar = c.schedule == 1
    parts = found.components_s["optimizer"][ar] * (c.tp * c.p)[ar] / NORMALISERS_S[block]
    assert parts == pytest.approx(np.full(len(parts), share), abs=tolerance)


@pytest.mark.parametrize(
    ("model", "cluster", "pr", "ar"),
    [("GPT-3", "A", 73014, 871284), ("GPT-3", "B", 181532, 2174677),
     ("T-NLG", "A", 50.3, 189.2), ("T-NLG", "B", 124.6, 357.6)],
)  # fmt: skip
def test_best_seconds_of_the_formulas_as_printed(model, cluster, pr, ar):
    training = load_training(f"{model}-table")
    for schedule, seconds in [("PR", pr), ("AR", ar)]:
        result = search(
            load_cluster(cluster),
            load_model(model),
            replace(training, schedules=(schedule,)),
            "printed",
            top=1,
        )
        digits = 1 if seconds < 1000 else None
        assert round(result.best["total_s"], digits) in (seconds, seconds + 1)
    assert search(load_cluster(cluster), load_model(model), training, "printed").best["schedule"] == "PR"


def test_printed_compute_time_counts_where_it_is_given():
    cluster, model, training = load_cluster("A"), load_model("T-NLG"), load_training("T-NLG-table")
    slow = replace(training, printed_flops_per_op=1e16)
    found = evaluate(cluster, model, slow, "printed")
    expected = 1e16 * 156 * 512 / (0.45 * 142.3e12 * 32)
    assert found.components_s["compute"] == pytest.approx(np.full(len(found.total_s), expected))
    assert (found.total_s >= expected).all()
    assert evaluate(cluster, model, slow, "table").components_s["compute"].max() == 0


def test_modes_are_checked():
    cluster, model, training = load_cluster("A"), load_model("T-NLG"), load_training("T-NLG-table")
    with pytest.raises(InputError, match="expected a mode of printed, table, corrected, got 'best'"):
        evaluate(cluster, model, training, "best")
    with pytest.raises(UnsupportedError, match="training only"):
        evaluate(cluster, model, replace(training, phase="inference"), "printed")
    with pytest.raises(InputError, match="know schedules PR and AR"):
        evaluate(cluster, model, replace(training, schedules=("IM",)), "table")
