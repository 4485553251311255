"""Conformance: recorded cases pass, and the tool counts what passes, fails, dies or is declined."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tilewright.ir import InputError, UnsupportedError
from tilewright.tools.conformance.__main__ import errors_by_network, findings, main, summary
from tilewright.tools.conformance.case import FAILED, PASSED, UNSUPPORTED, Result, Suite, compare, run_case
from tilewright.tools.conformance.suites import recorded_suite
from tilewright.tools.conformance.workers import run_all

RECORDED = Path(__file__).parents[2] / "data" / "relay_ops"
SUITE = recorded_suite(RECORDED)


def test_all_cases_are_here():
    assert len(SUITE.cases) == 377


@pytest.mark.parametrize("start", range(0, 377, 29))
def test_recorded_cases_pass_on_the_reference(start):
    results = [run_case(SUITE, name, "reference") for name in SUITE.cases[start : start + 29]]
    assert [r for r in results if r.status != PASSED] == []


@pytest.mark.parametrize("name", SUITE.cases[::6])
def test_recorded_cases_pass_compiled(name):
    result = run_case(SUITE, name, "opencl")
    assert result.status == PASSED, result.reason


def planned(name: str, target: str) -> float:
    if name == "declined":
        raise UnsupportedError("no such thing")
    if name == "wrong":
        raise ValueError("a\nfault")
    if name == "dies":
        os._exit(3)
    return 1e-7


def planned_suites() -> list[Suite]:
    return [Suite("planned", (), planned)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_case_gets_its_status(jobs):
    names = ["good", "declined", "wrong"] + ["dies"] * (jobs > 1)
    results = list(run_all(planned_suites, [("planned", n, "opencl") for n in names], jobs))
    found = {r.name: (r.status, r.reason) for r in results}
    assert found["good"] == (PASSED, "")
    assert found["declined"] == (UNSUPPORTED, "no such thing")
    assert found["wrong"] == (FAILED, "ValueError: a fault")
    if jobs > 1:
        assert found["dies"] == (FAILED, "the process died while it ran this case")
    assert len(results) == len(names)


def test_tables_name_what_did_not_pass():
    results = [
        Result("operators", "a", "opencl", PASSED, error=1e-7),
        Result("operators", "b", "opencl", FAILED, "ValueError: x"),
        Result("networks fp16", "mlp", "opencl", PASSED, error=2e-4),
    ]
    assert findings(results) == "failed: operators b on opencl: ValueError: x"
    first, *rows = summary(results).splitlines()
    assert first.split()[:4] == ["suite", "target", "cases", "passed"]
    assert rows[0].split() == ["operators", "opencl", "2", "1", "1", "0", "50.0", "1.0e-07"]
    assert errors_by_network(results).splitlines() == ["network  fp16 opencl", "mlp      2.0e-04"]
    assert errors_by_network(results[:2]) == ""


ONE = np.ones((2, 3), np.float32)
AT_INFINITY = np.array([1, np.inf], np.float32)


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        (ONE, ONE[:1], "expected float32"),
        (ONE, ONE.astype(np.float64), "expected float64"),
        (ONE, ONE * 1.001, "relative error"),
        (AT_INFINITY, -AT_INFINITY, "infinities or nans"),
        (ONE.astype(np.int32), ONE.astype(np.int32) * 2, "6 of 6 elements differ"),
    ],
)
def test_differences_are_explained(got, wanted, words):
    with pytest.raises(InputError, match=words):
        compare([got], [wanted])


def test_equal_results_have_no_error():
    assert compare([ONE, AT_INFINITY], [ONE, AT_INFINITY]) == 0.0
    with pytest.raises(InputError, match="expected 1 results, got 2"):
        compare([ONE, ONE], [ONE])


def test_the_command_writes_json_and_tells_failure(tmp_path, capsys):
    folder = tmp_path / "relay_ops"
    folder.mkdir()
    for name in ("sqrt_86f22f35", "log_26343876"):
        for end in ("relay", "npz"):
            (folder / f"{name}.{end}").write_bytes((RECORDED / f"{name}.{end}").read_bytes())
    out = tmp_path / "out.json"
    options = [
        str(tmp_path),
        "--suite",
        "operators",
        "--target",
        "reference",
        "--jobs",
        "1",
        "--json",
        str(out),
    ]
    assert main(options) == 0
    stored = folder / "sqrt_86f22f35.npz"
    with np.load(stored) as z:
        arrays = {k: z[k] + (k == "out0") for k in z.files}
    np.savez(stored, **arrays)
    assert main(options) == 1
    statuses = {r["name"]: r["status"] for r in json.loads(out.read_text())}
    assert statuses == {"sqrt_86f22f35": FAILED, "log_26343876": PASSED}
    assert "failed: operators sqrt_86f22f35 on reference: InputError: result 0" in capsys.readouterr().out


def test_a_folder_without_cases_is_bad_input(tmp_path, capsys):
    assert main([str(tmp_path), "--suite", "operators", "--target", "reference"]) == 2
    assert "found none" in capsys.readouterr().err
