"""`tilewright explain --train`: what each op costs in the backward pass, what is saved, and refusals."""

import io
import json
from contextlib import redirect_stdout

import pytest
from command_samples import printed, refused

from tilewright.tools.cli import main

#: in fp32 products in pieces take channels innermost, and the plan more memory than what is saved alone tells
DIGITS = ("explain", "zoo:digits", "--train", "sgd", "--target", "cuda:sm_90a", "--precision", "fp32-strict")


@pytest.fixture(scope="module")
def facts():
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([*DIGITS, "--json"]) == 0
    return json.loads(out.getvalue())


def test_every_op_of_the_network_has_its_backward_kernels(facts):
    ops = {row["op"]: row for row in facts["ops"]}
    assert {"zoo:conv1", "zoo:conv2", "zoo:conv3", "zoo:head"} <= set(ops)
    for row in ops.values():
        assert row["backward"]["estimate_s"] >= row["backward"]["bound_s"] > 0
        assert row["backward"]["kernels"]
    seconds = [row["backward"]["estimate_s"] for row in facts["ops"]]
    assert seconds == sorted(seconds, reverse=True)
    assert facts["optimizer"]["forward"]["estimate_s"] > 0
    assert sum(s["bytes"] for s in facts["saved"]) > 1 << 20
    assert facts["peak_bytes"] > 1 << 20


def test_the_arrays_of_the_peak_are_told_by_what_writes_them(facts):
    memory = facts["memory"]
    assert sum(r["bytes"] for r in memory["alive"]) == memory["at"]["bytes"] > 1 << 20
    assert {"forward", "backward"} >= {r["pass"] for r in memory["alive"]}
    assert memory["arena"] >= 0.9 * memory["at"]["bytes"]
    assert memory["beside"]["state"] > 0


def test_the_text_has_sums_and_what_is_saved(capsys):
    text = printed(capsys, *DIGITS)
    assert "memory of the plan: " in text
    assert "all ops of the network" in text
    assert "saved for the backward pass: " in text
    assert "computed again: " in text


def test_a_budget_is_kept_to_or_refused(capsys, facts):
    peak = facts["peak_bytes"]
    less = json.loads(printed(capsys, *DIGITS, "--json", "--memory-budget", str(int(0.97 * peak))))
    assert less["peak_bytes"] <= 0.97 * peak
    assert less["recomputed"]
    code, message = refused(capsys, *DIGITS, "--memory-budget", "10kB")
    assert code == 2
    assert "expected a memory budget of at least" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--train", "fast"), "--train: expected an optimizer among"),
        (("--loss", "mse"), "--loss: expected --train with this option"),
        (("--train", "sgd", "--loss", "none"), "expected a loss among"),
    ],
)
def test_refusals(capsys, arguments, message):
    code, text = refused(capsys, "explain", "zoo:digits", "--target", "cuda:sm_90a", *arguments)
    assert code == 2
    assert message in text
