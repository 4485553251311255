"""`tilewright cluster plan --devices`: machine measured, plan, run and comparison, by ranks in threads."""

import json

import numpy as np
import pytest
from command_samples import printed, refused

import tilewright as tw
from tilewright.cluster.measuring.link import LinkSample, fitted_link, link_error
from tilewright.cluster.planning.prediction import COMPONENTS
from tilewright.costmodel.cluster.inputs.loading import load_cluster
from tilewright.costmodel.links import Link
from tilewright.tools import cli
from tilewright.tools.cli import main
from tilewright.tools.commands import cluster as command

PLAN = ("cluster", "plan", "--devices", "2", "--model")


@pytest.fixture
def network(tmp_path):
    """Two dense layers of 64 units for four samples, with weights that follow from a seed."""
    path = tmp_path / "net.relay"
    path.write_text(
        "def @main(%data: Tensor[(4, 64), float32], %a: Tensor[(64, 64), float32], "
        "%b: Tensor[(64, 64), float32]) {\n"
        "  %0 = nn.dense(%data, %a, units=None);\n  %1 = nn.relu(%0);\n"
        "  %2 = nn.dense(%1, %b, units=None);\n  nn.softmax(%2)\n}\n"
    )
    return str(path)


def test_a_measured_plan_is_executed_as_planned(facts_of_ranks, tmp_path, network):
    """Every number of the comparison is there, and record and picture are written."""
    pytest.importorskip("matplotlib")
    saved, picture = tmp_path / "here.toml", tmp_path / "plan.svg"
    arguments = [
        *PLAN, network, "--measure-here", "--execute", "--p", "2", "--micro-batches", "2", "--repeats", "2",
        "--target", "opencl", "--record", str(saved), "--plot", str(picture), "--storage", str(tmp_path),
    ]  # fmt: skip
    facts = facts_of_ranks(arguments)
    plan, run = facts["plan"], facts["execution"]
    assert [plan[k] for k in ("dp", "wp", "p", "micro_batches", "micro_batch")] == [1, 1, 2, 2, 2]
    assert len(plan["cuts"]) == 1
    assert plan["cuts"][0].startswith("dense")
    assert (facts["op_seconds"], run["clock"]) == ("measured", "launches")
    assert len(facts["link_samples"]) == 4
    assert facts["measured_batches"] == [4, 2]
    assert run["relative_error"] < 1e-5
    assert [c["name"] for c in run["components"]] == list(COMPONENTS)
    by_name = {c["name"]: c for c in run["components"]}
    for name in ("compute", "pp"):
        assert by_name[name]["predicted_s"] > 0
        assert by_name[name]["measured_s"] > 0
    for name in ("wp", "dp"):
        assert by_name[name]["predicted_s"] == by_name[name]["measured_s"] == 0
    for key in ("predicted_s", "measured_s"):
        totals = [sum(rank[key].values()) for rank in run["ranks"]]
        assert run["total"][key] == pytest.approx(max(totals))
    assert [r["stage"] for r in run["ranks"]] == [0, 1]
    cluster = load_cluster(saved)
    assert cluster.devices == 2
    work = 4 * 2 * (2 * 64 * 64)
    assert cluster.device.flops_per_s("fp32") * run["whole_network_s"] == pytest.approx(work, rel=0.2)
    assert "rank 1, measured" in picture.read_text()


def test_a_plan_from_a_record_runs_nothing(capsys, record, network):
    facts = json.loads(printed(capsys, *PLAN, network, "--cluster", record, "--json"))
    assert facts["op_seconds"] == "record"
    assert "execution" not in facts
    shapes = {(c["dp"], c["wp"], c["p"], c["micro_batches"]) for c in facts["candidates"]}
    assert shapes == {(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 2, 2), (1, 1, 2, 4)}
    assert facts["plan"]["predicted_s"] == min(c["predicted_s"] for c in facts["candidates"])
    text = printed(capsys, *PLAN, network, "--cluster", record, "--batch", "8", "--p", "2")
    assert "net, one batch of 8 on two; fp32, by the record's rates" in text
    assert "stage 1 begins with dense" in text


def test_what_cannot_be_executed_is_told_and_not_planned(capsys, record, network):
    few = (*PLAN, network, "--cluster", record, "--min-weight", "1MiB")
    facts = json.loads(printed(capsys, *few, "--json"))
    (weights,) = (c for c in facts["candidates"] if c["wp"] == 2)
    assert weights["predicted_s"] is None
    assert "expected a weight of at least 1048576 bytes" in weights["not_executable"]
    assert "cannot be executed: expected a weight" in printed(capsys, *few)
    code, err = refused(capsys, *few, "--wp", "2")
    assert code == 1
    assert "no division of net can be executed; the first: expected a weight" in err


def test_capacities_count(capsys, record, network):
    with open(record, encoding="utf-8") as file:
        text = file.read()
    with open(record, "w", encoding="utf-8") as file:
        file.write(text.replace('memory = "1 GB"', 'memory = "24 kB"'))
    facts = json.loads(printed(capsys, *PLAN, network, "--cluster", record, "--json"))
    assert {c["dp"] for c in facts["candidates"]} == {1}
    code, err = refused(capsys, *PLAN, network, "--cluster", record, "--dp", "2")
    assert code == 1
    assert "no division of net over 2 devices as asked: device memory" in err


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--devices", "1"], "--devices: expected 2 devices or more"),
        (["--devices", "3"], "--devices: expected 2, the devices of two, got 3"),
        (["--dp", "2", "--wp", "2", "--p", "1"], "dp x wp x p = 2, the number of devices, got 2 x 2 x 1"),
        (["--measure-here"], "--cluster: expected a record (--cluster) or --measure-here, one of them"),
        (["--record", "x.toml"], "--record: expected --measure-here"),
        (["--training", "gpt-3"], "--training: expected this option without --devices"),
        (["--mode", "printed"], "--mode: a plan with --devices is priced by mode corrected"),
        (["--model", "gpt-3"], "--model: expected a network"),
        (["--model", "no.relay"], "no.relay: no such file"),
        (["--repeats", "0"], "--repeats: expected an integer from 1 to "),
        (["--part-sizes", "-1"], "--part-sizes: expected an integer from 0 to "),
        (["--micro-batches", "-1"], "--micro-batches: expected an integer from 0 to "),
        (["--batch", "0"], "--batch: expected an integer from 1 to "),
        (["--min-weight", "much"], "--min-weight: expected an amount of memory"),
        (["--timeout", "0"], "--timeout: expected a positive number of seconds"),
    ],
)  # fmt: skip
def test_bad_arguments_end_in_one_sentence(capsys, record, network, changed, told):
    code, err = refused(capsys, *PLAN, network, "--cluster", record, *changed)
    assert code == 2
    assert told in err


def test_options_of_devices_need_devices(capsys):
    code, err = refused(capsys, "cluster", "plan", "--cluster", "a", "--model", "gpt-3", "--execute")
    assert (code, err) == (2, "error: --execute: expected --devices with this option\n")
    code, err = refused(capsys, "cluster", "plan", "--model", "gpt-3", "--training", "gpt-3")
    assert (code, err) == (2, "error: --cluster: expected this option, or --devices for one inference\n")


def test_ranks_are_started_with_the_same_command(monkeypatch, capsys, network):
    started = []

    def launch(n, given, errors):
        started.append((n, given))
        return len(started) - 1

    monkeypatch.setattr("tilewright.distributed.launcher.launch", launch)
    arguments = [*PLAN, network, "--measure-here"]
    assert main(arguments) == 0
    assert started[0] == (2, ["-m", "tilewright.tools.cli", *arguments, "--as-rank"])
    assert main(arguments) == 1
    assert "a rank of 2 failed with exit code 1" in capsys.readouterr().err


def test_a_wrong_result_is_an_error(capsys, network):
    facts = {"execution": {"relative_error": 0.5}}
    arguments = cli.parser().parse_args([*PLAN, network, "--json"])
    with pytest.raises(tw.WorkError, match=r"the result is wrong: relative error 0\.5 is above 0\.0001"):
        command.tell(arguments, facts)
    with pytest.raises(tw.WorkError, match="relative error nan"):
        command.tell(arguments, {"execution": {"relative_error": float("nan")}})


def test_the_link_is_fitted_to_messages_and_sums():
    """Four devices: a message takes call + latency + S / bandwidth, a sum as long as a ring does."""
    link = Link(2e9, 3e-6, 7e-6, "device")
    knobs = np.array([link.call_s, link.latency_s, 1 / link.bytes_per_s])
    samples = []
    for kind, nbytes in (
        ("message", 1 << 12),
        ("message", 1 << 20),
        ("all_reduce", 1 << 12),
        ("all_reduce", 1 << 20),
    ):
        terms = LinkSample(kind, nbytes, 0.0, 4).terms()
        samples.append(LinkSample(kind, nbytes, float(np.dot(terms, knobs)), 4))
    found = fitted_link(samples)
    assert found.bytes_per_s == pytest.approx(2e9)
    assert found.latency_s == pytest.approx(3e-6)
    assert found.call_s == pytest.approx(7e-6)
    assert link_error(samples, found) < 1e-9
    assert samples[-1].seconds == pytest.approx(7e-6 + 6 * 3e-6 + 1.5 * (1 << 20) / 2e9)
    falling = [LinkSample("message", 1 << 12, 2e-6, 2), LinkSample("message", 1 << 20, 1e-6, 2)]
    odd = fitted_link(falling)
    assert odd.latency_s >= 0 <= odd.call_s
    assert 0 < odd.bytes_per_s < float("inf")
