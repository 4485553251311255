"""Table 5.6 of the BigCuts thesis, recomputed: normalised times of the shipped models on clusters A and B."""

from __future__ import annotations

from typing import Any

from tilewright.costmodel.cluster.evaluate import evaluate
from tilewright.costmodel.cluster.loaders import load_cluster, load_model, load_training

#: seconds of the value 1 in every block of the table, fitted to the printed cells (their only free number)
NORMALISERS_S = {
    ("GPT-3", "A"): 73115.6,
    ("GPT-3", "B"): 49556.2,
    ("T-NLG", "A"): 50.30,
    ("T-NLG", "B"): 45.74,
}


def table_rows() -> list[dict[str, Any]]:
    """144 rows {model, cluster, schedule, dp, wp, p, normalized}, ordered by these up to wp.

    `schedule` is the label of the printed column.
    """
    rows = []
    for (model, cluster), normaliser in NORMALISERS_S.items():
        found = evaluate(
            load_cluster(cluster), load_model(model), load_training(f"{model}-table"), mode="table"
        )
        block = [found.configurations.row(i) for i in range(len(found.configurations))]
        for schedule in ("PR", "AR"):
            rows += [
                {
                    "model": model,
                    "cluster": cluster,
                    "schedule": schedule,
                    **{key: row[key] for key in ("dp", "wp", "p")},
                    "normalized": float(seconds) / normaliser,
                }
                for row, seconds in zip(block, found.total_s, strict=True)
                if row["schedule"] == schedule
            ]
    return rows
