"""The suite of foreign networks: its list, its table, and processes that die or hang."""

import os
import time
from itertools import chain

import numpy as np
import pytest

from tilewright.ir import InputError
from tilewright.tools.foreign.__main__ import main
from tilewright.tools.foreign.network import Prepared
from tilewright.tools.foreign.registry import ENTRIES, chosen
from tilewright.tools.foreign.row import (
    AS_TORCH,
    DECLINED,
    DIED,
    EXPORTER,
    RIGHT,
    TIMEOUT,
    WRONG,
    ForeignCase,
    Row,
    markdown,
    summary,
)
from tilewright.tools.foreign.ways import Imported
from tilewright.tools.foreign.workers import _Runner, run_all


def case(network: str, via: str = "export") -> ForeignCase:
    return ForeignCase(network, via, 1, "reference", "fp32")


def test_there_are_enough_networks_of_several_packages():
    assert len(ENTRIES) >= 45
    assert {e.package for e in ENTRIES.values()} >= {"timm", "torchvision", "transformers", "torch"}
    assert [n for n, e in ENTRIES.items() if n != e.name or not e.ways] == []


def test_other_tolerances_give_their_reason():
    assert [e.name for e in ENTRIES.values() if bool(e.tolerance) != bool(e.because)] == []


def test_unknown_networks_are_refused(capsys):
    with pytest.raises(InputError, match="did you mean 'mobilevit_xxs'"):
        chosen(["mobilevit_xs"])
    assert main(["nonesuch"]) == 2
    assert "unknown network 'nonesuch'" in capsys.readouterr().err


def test_tables():
    rows = [
        Row(case("a"), RIGHT, 1e-7, 2.0),
        Row(case("a", "compile"), DECLINED, reason="no a|b"),
        Row(case("b"), RIGHT, 2e-7, 3.0),
    ]
    assert summary(rows) == "1 of 2 networks are right in every row; 3 rows: 2 right, 1 declined"
    assert markdown(rows).splitlines()[2:] == ["| a | declined: no a/b | 1.0e-07 |", "| b |  | 2.0e-07 |"]
    assert rows[0].line().split() == ["a", "export", "1", "reference", "fp32", "1.0e-07", "2.0", "right"]


class Rounding(Prepared):
    """A network whose results in 16 bits are off by a given share, or that torch cannot run in them."""

    def __init__(self, off):
        self.off = off

    def rounded(self, inputs, precision):
        if self.off is None:
            raise RuntimeError("not implemented for 'Half'")
        return [np.array([1.0 + self.off])]


@pytest.mark.parametrize(
    ("precision", "own", "state", "reason"),
    [
        ("fp16", 0.05, AS_TORCH, "torch's own error in fp16: 5.0e-02"),
        ("fp16", float("inf"), AS_TORCH, "torch's own error in fp16: inf"),
        ("fp16", 0.04, WRONG, "expected at most 0.02; torch's own error in fp16: 4.0e-02"),
        ("fp16", None, WRONG, "torch has no result in fp16: not implemented for 'Half'"),
        ("fp32", 0.05, WRONG, "expected at most 0.0001"),
    ],
)
def test_results_in_16_bits_are_held_against_those_of_torch(precision, own, state, reason):
    runner = _Runner(next(n for n, e in ENTRIES.items() if not e.tolerance), False)
    runner._known = {"prepared": Rounding(own), ("inputs", 1): [], ("exact", 1): [np.array([1.0])]}
    found = runner._judged(ForeignCase("any", "export", 1, "cuda", precision), 0.09)
    assert found[0] == state
    assert reason in found[1]


class Exported(Imported):
    """A file from which ONNX Runtime computes `theirs`."""

    def __init__(self, theirs):
        self.theirs = [np.array([theirs])]

    def as_exported(self, inputs):
        return self.theirs


@pytest.mark.parametrize(("theirs", "state"), [(1.5, EXPORTER), (1.0, WRONG), (2.0, WRONG)])
def test_what_an_exporter_changed_is_no_fault_of_the_import(theirs, state):
    runner = _Runner(next(n for n, e in ENTRIES.items() if not e.tolerance), False)
    runner._known = {"prepared": Rounding(None), ("inputs", 1): [], ("exact", 1): [np.array([1.0])]}
    runner._known["onnx-dynamo", 1] = Exported(theirs)
    runner._got = [np.array([1.5])]
    assert runner._judged(ForeignCase("any", "onnx-dynamo", 1, "cuda", "fp32"), 0.5)[0] == state


def planned(pipe, threads, only_compile):
    for c in chain.from_iterable(iter(pipe.recv, None)):
        if c.network == "dies" and c.via == "export":
            os._exit(3)
        if c.network == "hangs" and c.via == "export":
            time.sleep(60)
        pipe.send(Row(c, RIGHT))


def test_a_process_that_dies_or_hangs_costs_one_row():
    cases = [case(n, via) for n in ("dies", "hangs", "good") for via in ("onnx-script", "export", "compile")]
    rows = {(r.case.network, r.case.via): r for r in run_all(cases, 2, 3.0, child=planned, starting=120.0)}
    assert len(rows) == 9
    assert {k: r.state for k, r in rows.items() if r.state != RIGHT} == {
        ("dies", "export"): DIED,
        ("hangs", "export"): TIMEOUT,
    }
    assert rows["dies", "export"].reason == "exit code 3"
    assert rows["hangs", "export"].reason == "no result within 3 s"


def test_one_network_of_torch_comes_in_right(capsys, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tvm")
    file = tmp_path / "rows.json"
    given = ["tcn", "--target", "reference", "--batch", "1", "--via", "export"]
    assert main([*given, "--json", str(file)]) == 0
    assert "1 of 1 networks are right in every row; 1 rows: 1 right" in capsys.readouterr().out
    assert '"state": "right"' in file.read_text()
