"""`tilewright cluster plan --train`: a step divided over ranks in threads, or streamed, and its model."""

import json

import pytest
from command_samples import printed, refused

import tilewright as tw
from tilewright.cluster.planning.op_seconds import OpSeconds, op_flops_of
from tilewright.cluster.planning.search import RequestedShape
from tilewright.cluster.steps import programs
from tilewright.cluster.steps.planning import estimated_launches, plan_facts
from tilewright.cluster.steps.report import step_text
from tilewright.cluster.steps.streamed import STREAMED_COMPONENTS
from tilewright.cluster.steps.ways import StepSearch, StepSize, StepWay, TrainingTask, ways_of
from tilewright.costmodel.cluster.inputs.loading import load_cluster
from tilewright.costmodel.op_work import Rates
from tilewright.frontends import zoo
from tilewright.ir import WorkError
from tilewright.streaming import training_executable
from tilewright.training import optim

NETWORK = "zoo:linear_classifier{batch=8,features=64,classes=64}"
PLAN = ("cluster", "plan", "--model", NETWORK, "--train", "sgd", "--target", "opencl", "--min-weight", "4KiB")
RATES = Rates(1e11, 1e10)


def task():
    network = zoo.build(NETWORK.removeprefix("zoo:"))
    return TrainingTask(network, "classifier", "cross_entropy", optim.sgd(lr=0.1, momentum=0.9), "fp32")


def alone(found):
    return [*found.values()]


@pytest.mark.parametrize("cores", [1, 4])
def test_a_measured_step_is_executed_as_planned(facts_of_ranks, monkeypatch, tmp_path, cores):
    """Losses are those of the undivided step, and every number of the comparison is there.

    With two cores for each rank, steps are compiled by processes of their own, beside the rank's part.
    """
    monkeypatch.setattr(programs, "usable_cores", lambda: cores)
    arguments = [
        *PLAN, "--devices", "2", "--measure-here", "--execute", "--dp", "2", "--zero", "1", "--repeats", "2",
        "--storage", str(tmp_path),
    ]  # fmt: skip
    facts = facts_of_ranks(arguments)
    plan, run = facts["plan"], facts["execution"]
    assert [plan[k] for k in ("mode", "dp", "wp", "p", "zero")] == ["batch", 2, 1, 1, 1]
    assert (plan["measured_size"], plan["kernel_samples"]) == (True, 4)
    assert facts["measured_sizes"] == [{"samples": 8, "runs": 1}, {"samples": 4, "runs": 1}]
    assert run["relative_error"] < 1e-5
    by_name = {c["name"]: c for c in run["components"]}
    for name in ("compute", "optimizer", "dp"):
        assert by_name[name]["predicted_s"] > 0
        assert by_name[name]["measured_s"] > 0
    for key in ("predicted_s", "measured_s"):
        assert run["total"][key] == pytest.approx(max(sum(r[key].values()) for r in run["ranks"]))
    names = [phase["name"] for phase in facts["phases"]]
    assert names[0] == "measuring the link"
    early = names.index("compiling parts of ranks") < names.index("compiling steps to measure")
    assert early == (cores > 1)
    text = step_text(facts)
    assert "plan: dp 2, wp 1, p 1, ZeRO-1, predicted" in text
    assert "s: measuring the link" in text
    assert "relative error of losses against the whole step" in text


def test_all_ways_are_priced_from_a_record(capsys, record):
    facts = json.loads(printed(capsys, *PLAN, "--devices", "2", "--cluster", record, "--json"))
    rows = facts["candidates"]
    assert [(c["mode"], c["micro_batches"], c["zero"]) for c in rows] == [
        ("batch", 1, 0), ("batch", 1, 1), ("weights", 1, 0),
        ("pipeline", 2, 0), ("pipeline", 4, 0), ("pipeline", 8, 0),
    ]  # fmt: skip
    assert all(c["predicted_s"] or c["not_executable"] for c in rows)
    plain, zero = rows[0], rows[1]
    assert zero["state_bytes"] < 0.6 * plain["state_bytes"]
    assert facts["plan"]["predicted_s"] == min(c["predicted_s"] for c in rows if c["predicted_s"])


def test_an_executed_step_is_priced_by_its_kernels(facts_of_ranks, record):
    """By a record's rates, what is fused would count as often as it is read; kernels of the size do not."""
    arguments = [*PLAN, "--devices", "2", "--cluster", record, "--execute", "--dp", "2", "--zero", "0"]
    facts = facts_of_ranks(arguments)
    assert "kernels by the model, the record's rate" in step_text(facts)
    assert (facts["op_seconds"], facts["measured_sizes"]) == ("record", [])
    launches = {
        size: sum(s for _, s in estimated_launches(tw.compile(task().step(size), "opencl")))
        for size in (StepSize(8), StepSize(4))
    }
    by_rate_s = op_flops_of(task().graph(StepSize(8)).main) / load_cluster(record).device.flops_per_s("fp32")
    slower = max(1.0, by_rate_s / launches[StepSize(8)])
    for rank in facts["execution"]["ranks"]:
        own = rank["predicted_s"]
        assert own["compute"] + own["optimizer"] == pytest.approx(slower * launches[StepSize(4)], rel=0.05)


def test_what_cannot_be_shared_or_held_is_told(record):
    seconds = {StepSize(8): OpSeconds(RATES, {})}
    search = StepSearch(task(), load_cluster(record), [StepWay("weights", 2)], seconds, False, 65_536)
    with pytest.raises(WorkError, match="a parameter of at least 65536 bytes that 2 devices can share"):
        search.best(alone, [0], None, 0)
    uneven = StepSearch(task(), load_cluster(record), [StepWay("batch", 3)], search.known, False)
    assert uneven.priced(uneven.ways[0]).why == "3 devices do not share a batch of 8 evenly"


def test_an_estimate_is_measured_before_it_is_planned(record):
    """Kernels of fewer samples turn out to be slow, which raises the prices of both ways that have them."""
    ways = [StepWay("batch", 2), StepWay("batch", 2, zero=1)]
    cheap = OpSeconds(RATES, {})
    slow = OpSeconds(RATES, dict.fromkeys(("", "loss", "optimizer"), 1e6))
    asked = []

    def measure(size):
        asked.append(size)
        return slow

    search = StepSearch(task(), load_cluster(record), ways, {StepSize(8): cheap}, True, 4096)
    best, found = search.best(alone, [0, 1], measure, 4)
    assert asked == [StepSize(4)]
    assert best.measured
    assert best.predicted_s == min(p.predicted_s for p in found) > 1e-3
    facts = plan_facts(search.task, search, best, found, [])
    assert facts["measured_sizes"] == [{"samples": 8, "runs": 1}, {"samples": 4, "runs": 1}]


def test_ways_that_were_asked_for():
    assert ways_of(2, 8, RequestedShape(p=2, micro_batches=1)) == [StepWay("pipeline", 2, 1)]
    assert ways_of(2, 8, RequestedShape(), zero=1) == [StepWay("batch", 2, zero=1)]
    assert [w.micro_batches for w in ways_of(4, 32, RequestedShape(p=4))] == [2, 4, 8, 16]


def test_a_streamed_step_is_compared_by_component(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(training_executable, "RATE_S", 0.02)
    arguments = [*PLAN, "--devices", "1", "--memory-cap", "128KiB", "--micro-batches", "2", "--repeats", "2",
                 "--storage", str(tmp_path), "--execute"]  # fmt: skip
    facts = json.loads(printed(capsys, *arguments, "--json"))
    run = facts["execution"]
    assert run["relative_error"] < 1e-5
    assert [c["name"] for c in run["components"]] == list(STREAMED_COMPONENTS)
    assert run["read_bytes"] >= facts["plan"]["state_bytes"]
    assert all(c["predicted_s"] > 0 for c in run["components"] if c["name"] in ("compute", "read", "write"))
    assert facts["plan"]["predicted_s"] == min(c["predicted_s"] for c in facts["candidates"])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--devices", "1", "--cluster", "x"], "--devices: expected 2 devices or more, or --train with"),
        (["--devices", "2", "--memory-cap", "1MiB"], "--memory-cap: expected --devices 1: state streams"),
        (["--devices", "1", "--memory-cap", "1MiB", "--micro-batches", "3"], "a batch of 8 evenly, got 3"),
        (["--devices", "1", "--memory-cap", "1MiB", "--dp", "2"], "--dp: expected this option without"),
        (["--devices", "2", "--cluster", "RECORD", "--dp", "2", "--p", "2"], "of one of the ways to divide"),
        (["--devices", "2", "--cluster", "RECORD", "--train", "sdg"], "--train: expected an optimizer among"),
        (["--devices", "2", "--cluster", "RECORD", "--zero", "2"], "--zero: expected an integer from 0 to 1"),
    ],
)  # fmt: skip
def test_bad_arguments_end_in_one_sentence(capsys, record, changed, told):
    code, err = refused(capsys, *PLAN, *(record if x == "RECORD" else x for x in changed))
    assert code == 2
    assert told in err
