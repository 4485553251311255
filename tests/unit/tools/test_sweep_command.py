"""`tilewright sweep`: every configuration priced, none below the best, selections that nothing undercuts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_samples import printed, refused

from tilewright.costmodel import GpuHardware, load_hardware
from tilewright.costmodel.selection.exact import exact
from tilewright.frontends import zoo
from tilewright.tools.data_movement.fused_encoder import KERNELS
from tilewright.tools.data_movement.kernel_dims import kernels_of
from tilewright.tools.data_movement.sweep import selection_problem, sweep
from tilewright.tools.plots.configurations import drawn, write_violins

LAYER = "encoder_dataflow{batch=2, sequence=32, heads=2, size=16, hidden=64}"
COMMAND = ("sweep", "zoo:digits", "--target", "cuda:sm_90a:h200")


@pytest.fixture(scope="module")
def swept():
    hardware = load_hardware("H200")
    assert isinstance(hardware, GpuHardware)
    return sweep(zoo.build(LAYER), hardware, "f16", KERNELS)


def test_dimensions_are_those_that_values_join():
    kernels = {k.name: k for k in kernels_of(zoo.build(LAYER), KERNELS)}
    assert len(kernels) == 14 + 18
    softmax = kernels["sm"]
    assert sorted(softmax.extents.values()) == [2, 2, 32, 32]
    assert len(softmax.reduced) == 1
    (scores, *_) = softmax.uses
    assert all(u.axes in (scores.axes, ()) for u in softmax.uses)
    product = kernels["QKT"]  # keys and queries are parts of one tensor that run along other dimensions
    assert [u.tensor for u in product.uses[:2]] == ["aib 1", "aib 1"]
    assert product.uses[0].axes != product.uses[1].axes
    assert kernels["QKV dX"].factors == ((3,), (0, 1, 2))


def test_configurations_are_orders_times_knobs(swept):
    count = {c.kernel: c.configurations for c in swept.costs}
    assert not swept.refused
    assert count["bei"] == 6**3 * 9
    assert count["sm"] == 24**4 * 16
    assert count["QKT"] == 128
    assert count["linear 1"] == 16
    for c in swept.costs:
        assert c.best_s == c.seconds.min() > 0
        assert 0 <= c.pruned < c.configurations
        assert c.pruned_bound_s > c.best_s


def test_the_selection_is_exact_and_keeps_second_uses_equal(swept):
    problem = selection_problem(swept.costs)
    chosen = exact(problem)
    assert chosen.optimal
    assert chosen.seconds >= sum(c.best_s for c in swept.costs) * (1 - 1e-9)
    assert problem.seconds(chosen.labels) == pytest.approx(chosen.seconds)
    assert ("aib 1", "aib 1 in QKT 1") in problem.equal
    rng = np.random.default_rng(0)
    for _ in range(200):
        labels = {v: str(rng.choice(domain)) for v, domain in problem.merged.domains.items()}
        assert problem.merged.seconds(labels) >= chosen.seconds * (1 - 1e-9)


def test_the_command_prints_counts_and_certificates(capsys, tmp_path):
    plot = tmp_path / "violins.svg"
    text = printed(capsys, *COMMAND, "--plot", str(plot))
    assert "configurations are priced" in text
    assert "one order per tensor" in text
    assert plot.read_text().startswith("<?xml")
    facts = json.loads(printed(capsys, *COMMAND, "--json"))
    assert facts["configurations"] == sum(k["configurations"] for k in facts["kernels"])
    assert facts["times"] == "modelled"
    for k in facts["kernels"]:
        assert k["quantiles_s"] == sorted(k["quantiles_s"])
        assert (k["quantiles_s"][0], k["quantiles_s"][-1]) == (k["best_s"], k["worst_s"])
    assert facts["selection"]["seconds"] >= facts["selection"]["free_s"] * (1 - 1e-9)
    assert facts["selection"]["seconds"] <= facts["selection"]["shortest_path_s"] * (1 + 1e-9)
    assert "which may read windows" in facts["refused"]["conv2"]


def test_violins_begin_with_the_best(swept, tmp_path):
    norm = next(c for c in swept.costs if c.kernel == "ebsb")
    values = drawn(norm)
    assert len(values) == 4000 < norm.configurations
    assert values[0] == pytest.approx(np.log10(1e6 * norm.best_s))
    write_violins([norm, swept.costs[0]], str(tmp_path / "violins.png"))
    assert (tmp_path / "violins.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernels", "published"), "expected operators of the network in groups"),
        (("--plot", "a.pdf"), "expected a file name that ends in .png or .svg"),
        (("--target", "opencl"), "expected a target with a GPU"),
    ],
)
def test_refusals(capsys, arguments, message):
    code, text = refused(capsys, *COMMAND, *arguments)
    assert code == 2
    assert message in text
