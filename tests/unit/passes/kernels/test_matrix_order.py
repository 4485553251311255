"""The order of estimates of products by roles, against measurements on an H200 (2026-11-23, 16-bit factors).

What the model takes must be within a tenth of the best of what was measured. A row is a product with its
epilogue, and the microseconds of each kind of kernel.
"""

import numpy as np
import pytest

from tilewright.costmodel import load_hardware
from tilewright.passes.kernels.matrix.choice import choose_matrix
from tilewright.passes.kernels.matrix.estimator import estimate_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters, MatrixTile, Warps
from tilewright.passes.kernels.matrix.space import MatrixProblem, matrix_space_of

H200 = load_hardware("H200")


def by_roles(m: int, n: int, stages: int, teams: int = 1) -> MatrixParameters:
    warps = Warps(8 // teams, 1)
    tile = MatrixTile(m, n, 64)
    return MatrixParameters(
        tile, warps, stages, "", 1, "wgmma", copiers=4, teams=teams, blocks=132, transport="engine"
    )


def together(m: int, n: int, warps: int, stages: int) -> MatrixParameters:
    return MatrixParameters(MatrixTile(m, n, 64), Warps(warps, 1), stages, "", 1, "wgmma")


KINDS = {
    "wide": by_roles(128, 256, 4),
    "tall": by_roles(256, 128, 4),
    "less": by_roles(128, 192, 4),
    "turns": by_roles(128, 128, 5, 2),
    "wide turns": by_roles(64, 256, 4, 2),
    "all": together(128, 256, 8, 4),
    "group": together(128, 192, 4, 3),
}
#: m, n, k, instructions and bytes of the epilogue -> microseconds by kind
MEASURED = {
    (2048, 2048, 2048, 0.5, 0): (24.8, 24.9, 35.1, 24.9, 24.3, 28.3, None),
    (4096, 4096, 4096, 0.5, 0): (194.1, 205.4, None, 213.1, 207.9, 243.3, None),
    (8192, 8192, 8192, 0.5, 0): (1650.9, 1691.6, None, 1799.5, None, 1929.0, None),
    (8192, 2304, 768, 2.0, 0): (60.1, 58.2, 53.4, 47.4, 48.5, 75.1, 76.3),
    (8192, 768, 768, 3.5, 1): (27.7, 27.8, 21.6, 21.1, 20.3, 33.4, 34.0),
    (8192, 3072, 768, 26.0, 0): (83.8, 84.4, 85.7, 81.4, 83.1, 89.5, 116.1),
    (8192, 768, 3072, 3.5, 1): (79.4, 79.5, 61.4, 62.6, 65.0, 96.6, 87.1),
}


def problem_of(m: int, n: int, k: int, work: float, reads: int) -> MatrixProblem:
    result = 2 * m * n
    return MatrixProblem(
        1, m, n, k, 1, 2, 2 * m * k, 2 * n * k, result * (1 + reads), tail_work=work,
        tail_bytes=result * reads, boxes=True,
    )  # fmt: skip


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: "x".join(map(str, row[:3])))
def test_the_model_takes_what_was_measured_to_be_among_the_best(row):
    problem = problem_of(*row)
    timed = {kind: us for kind, us in zip(KINDS, MEASURED[row], strict=True) if us is not None}
    estimates = estimate_matrix(problem, matrix_space_of(*(KINDS[kind] for kind in timed)), H200)
    assert list(timed.values())[int(np.argmin(estimates))] <= 1.1 * min(timed.values())
    errors = np.log(estimates * 1e6 / np.array(list(timed.values())))
    assert np.abs(errors).max() < 0.3
    chosen = choose_matrix(problem, H200).parameters
    assert chosen.copiers == 4
    alike = [
        us for kind, us in timed.items()
        if (KINDS[kind].block, KINDS[kind].teams) == (chosen.block, chosen.teams)
    ]  # fmt: skip
    assert not alike or alike[0] <= 1.1 * min(timed.values())


def test_what_waits_for_memory_keeps_several_blocks():
    """ResNet-50's first sums, with a residual and two results: 89 us so, 130 us by roles on an H200."""
    rows, size = 200704, 2 * 200704 * 256
    problem = MatrixProblem(
        1, rows, 256, 64, 1, 2, 2 * rows * 64, 2 * 256 * 64, 3 * size, tail_work=6.0, tail_bytes=size,
        boxes=True,
    )  # fmt: skip
    found = choose_matrix(problem, H200)
    assert found.parameters.copiers == 0
    assert 0.8 < found.estimate_s / 89e-6 < 1.2
    roles = estimate_matrix(problem, matrix_space_of(KINDS["wide"]), H200)[0]
    assert 0.8 < roles / 130e-6 < 1.2
