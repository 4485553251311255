"""The official stages: cut, changed and joined as values, and printed as pipelines write them."""

import pytest
from conv_algorithms import conv_module

from tilewright.ir import InputError, Level
from tilewright.passes import PassContext, Pipeline, pipelines, run_pipeline
from tilewright.passes.estimation.service import KernelEstimator
from tilewright.passes.framework.context import AlgorithmCost
from tilewright.passes.pipelines import GRAPH, TENSOR, Stages, around_own_passes, official_stages


def test_cuts_go_through_all_stages():
    stages = official_stages(Level.GRAPH, "cuda")
    before, rest = stages.until("pack-weights"), stages.since("pack-weights")
    assert before.graph == stages.graph
    assert before.thread == rest.graph == Pipeline()
    assert before.whole + rest.whole == stages.whole
    assert rest.thread == stages.thread
    assert stages.down_to(Level.TENSOR).whole == stages.graph + stages.tensor
    assert [level for level, _ in rest] == [Level.TENSOR, Level.THREAD]


def test_passes_of_stages_are_replaced_and_left_out():
    stages = official_stages(Level.TENSOR, "opencl")
    changed = stages.replace("fuse-kernels", "fuse-kernels{partitioner=none}").without("excess-precision")
    assert "fuse-kernels{partitioner=none}, place-concats" in str(changed.tensor)
    assert "excess-precision" not in changed.thread.names
    with pytest.raises(InputError, match=r"no pass 'fuse-kernel' \(did you mean 'fuse-kernels'"):
        stages.without("dce", "fuse-kernel")
    with pytest.raises(InputError, match="no pass 'infer-shapes'"):
        stages.until("infer-shapes")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "choose-algorithms{factors=split}"),
        ({"precision": "fp32-strict"}, "choose-algorithms"),
        ({"workspace": "any"}, "choose-algorithms{workspace=any, factors=split}"),
        ({"conv_algorithm": "fft", "workspace": "any"}, "choose-algorithms{algorithm=fft}"),
        ({"precision": "tf32"}, "choose-algorithms{algorithm=direct}"),
        ({"conv_algorithm": ""}, "join-groups{factors=split}"),
    ],
)
def test_options_of_a_compilation_are_options_of_passes(given, text):
    *_, last, sliced, saved = official_stages(Level.GRAPH, "cuda", **given).graph.passes
    assert str(last) == text
    factors = pipelines.FACTORS.get(given.get("precision", "fp32"))
    assert str(sliced) == (f"slice-batches{{factors={factors}}}" if factors else "slice-batches")
    assert str(saved) == (f"choose-saved{{factors={factors}}}" if factors else "choose-saved")


@pytest.mark.parametrize("precision", list(pipelines.PRECISIONS))
@pytest.mark.parametrize("language", list(pipelines.THREAD))
def test_official_pipelines_can_run_in_their_order(precision, language):
    whole = official_stages(Level.GRAPH, language, precision).whole
    whole.check({Level.GRAPH}, facts=("verified",))
    assert Pipeline.parse(str(whole)) == whole


def test_own_passes_run_behind_what_they_build_on():
    stages = official_stages(Level.GRAPH, "cuda", "fp16")
    first, rest = around_own_passes(Level.GRAPH, stages.graph)
    assert first == pipelines.FLOAT8 + GRAPH  # before constants are folded
    assert rest.names[0] == "mixed-precision"
    exact = official_stages(Level.GRAPH, "cuda", "fp32").graph
    assert around_own_passes(Level.GRAPH, exact)[0] == GRAPH
    assert around_own_passes(Level.TENSOR, TENSOR) == (Pipeline(), TENSOR)
    first, rest = around_own_passes(Level.TENSOR, stages.tensor)
    assert (first.names[-1], rest.without("store-narrow")) == ("regular-gathers", TENSOR)
    first, rest = around_own_passes(Level.THREAD, stages.thread)
    assert (first.names[-1], rest.names[0]) == ("thread-dce", "place-barriers")


def test_no_stage_is_no_pass():
    assert list(Stages()) == []
    assert str(Stages().whole) == ""


@pytest.mark.parametrize("name", pipelines.ESTIMATES)
def test_estimates_run_passes_of_a_compilation_in_its_order(name):
    for precision in ("fp32", "fp32-strict", "tf32"):
        whole = official_stages(Level.GRAPH, "cuda", precision).whole
        assert pipelines.estimates(name, pipelines.FACTORS.get(precision, "")).is_part_of(whole)


class Told:
    """An estimator that has one answer, and what it was asked."""

    def __init__(self):
        self.asked = []

    def algorithm_cost(self, op, algorithm, hardware, *, constant_weight, factors):
        self.asked.append((algorithm, constant_weight))
        return AlgorithmCost({"direct": 2.0, "winograd2": 3.0, "winograd4": 1.0}[algorithm], 0)


def test_passes_ask_the_estimator_of_their_context():
    module = conv_module((1, 64, 56, 56), (64, 64, 3, 3), "direct", constant=True, padding=(1,) * 4)
    told = Told()
    asking = Pipeline.parse("infer-shapes, choose-algorithms{workspace=any}")
    out = run_pipeline(module, asking, PassContext("cuda:sm_90a", estimator=told))
    assert [op["algorithm"] for op in out.main.body.ops if op.name == "graph.conv2d"] == ["winograd4"]
    assert told.asked == [("direct", True), ("winograd2", True), ("winograd4", True)]


def test_equal_questions_to_the_estimator_are_answered_once():
    estimator, asked = KernelEstimator(), []

    def answer():
        asked.append(None)
        return 3.0

    assert [estimator.remembered(("a", 1), answer) for _ in range(2)] == [3.0, 3.0]
    assert estimator.remembered(("a", 2), answer) == 3.0
    assert len(asked) == 2
    numbers = [estimator.number_of(structure) for structure in ("x", "y", "x")]
    assert numbers[0] == numbers[2] != numbers[1]
