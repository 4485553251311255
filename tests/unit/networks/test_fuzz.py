"""The fuzzer: it draws every op, finds what is planted, and finds nothing in some seconds of graphs."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tilewright.ir import equal, interpret, parse, show, verify
from tilewright.ir.opdef import op_defs
from tilewright.passes import pass_defs
from tilewright.passes.graph.gradients.registry import GRADIENTS
from tilewright.passes.lower.lowering import RULES
from tilewright.tools.conformance.case import FAILED
from tilewright.tools.fuzz.__main__ import main
from tilewright.tools.fuzz.campaign import fuzz, keep, kept
from tilewright.tools.fuzz.check import check, fails
from tilewright.tools.fuzz.generate import DRAWERS, UNDRAWN, draw, generate
from tilewright.tools.fuzz.program import RandomGraph
from tilewright.tools.fuzz.shrink import shrink
from tilewright.tools.fuzz.updates import check_text, with_updates

KEPT = sorted((Path(__file__).parents[2] / "data" / "fuzz").glob("*.ir"))
SECONDS = float(os.environ.get("TILEWRIGHT_FUZZ_SECONDS", "12"))


def test_every_graph_op_is_drawn():
    defined = {d.name.removeprefix("graph.") for d in op_defs() if d.name.startswith("graph.")}
    assert {name.split()[0] for name in DRAWERS} | UNDRAWN == defined


@pytest.mark.parametrize("name", DRAWERS)
def test_a_drawer_draws_its_op(name):
    for seed in range(40):
        p = RandomGraph(seed)
        if draw(p, name):
            assert p.builder.ops[-1].name == f"graph.{name.split()[0]}"
            verify(p.module())
            return
    raise AssertionError(f"{name} rejected all its draws")


def test_a_seed_names_one_graph():
    a, b = generate(7), generate(7)
    assert show(a.module()) == show(b.module())
    assert all(np.array_equal(x, y) for x, y in zip(a.inputs, b.inputs, strict=True))
    assert show(a.module()) != show(generate(8).module())


@pytest.fixture
def planted(monkeypatch):
    """A wrong lowering: relu keeps negative numbers."""
    pass_defs()  # which loads the rules
    monkeypatch.setitem(RULES, "graph.relu", lambda b, op, x: [x[0]])


@pytest.fixture
def planted_gradient(monkeypatch):
    """A wrong gradient rule: what comes back to a sigmoid goes on as it is."""
    pass_defs()
    monkeypatch.setitem(GRADIENTS, "graph.sigmoid", lambda b: [b.g])


def first_failing(name: str) -> RandomGraph:
    """The first graph that fails, of those with the op whose rule is wrong: no other can."""
    for seed in range(200):
        p = generate(seed)
        if any(op.name == name for op in p.builder.ops) and fails(
            "tensor", "WorkError", p.module(), p.inputs
        ):
            return generate(seed)
    raise AssertionError("nothing found in 200 graphs")


def test_a_planted_fault_is_found_and_made_small(planted, tmp_path):
    program = first_failing("graph.relu")
    module, inputs = shrink(program.module(), program.inputs, partial(fails, "tensor", "WorkError"))
    assert [op.name for op in module.main.body.ops] == ["graph.relu", "graph.return"]
    again, arrays = kept(keep(tmp_path, "case", module, inputs, "WorkError: planted"))
    assert fails("tensor", "WorkError", again, arrays)


def test_a_wrong_gradient_is_found_and_made_small(planted_gradient):
    program = first_failing("graph.sigmoid")
    module, _ = shrink(program.module(), program.inputs, partial(fails, "tensor", "WorkError"))
    assert [op.name for op in module.main.body.ops] == ["graph.sigmoid", "graph.return"]


def test_graphs_as_functions_with_state():
    pairs = 0
    for seed in range(20):
        program = generate(seed)
        module = program.module()
        state = with_updates(module, program.inputs)
        if state is None:
            continue
        check_text(state)
        pairs += len(state.main.updates)
        for a, b in zip(interpret(state, *program.inputs), interpret(module, *program.inputs), strict=True):
            np.testing.assert_array_equal(a, b)
    assert pairs > 5


def test_a_finding_is_kept_with_its_arrays(tmp_path):
    program = generate(11)
    module = program.module()
    again, arrays = kept(keep(tmp_path, "case", module, program.inputs, "why"))
    assert equal(parse(show(module), constants=module.constants), again)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, program.inputs, strict=True))


def test_the_module_runs_in_processes():
    """As users start it: what its processes run must have a name that they can import."""
    command = [
        sys.executable,
        "-m",
        "tilewright.tools.fuzz",
        "--target",
        "tensor",
        "--seconds",
        "1",
        "--jobs",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "graphs on tensor from seed 0: 0 findings" in done.stdout


def test_the_command_counts_graphs(capsys):
    assert main(["--target", "tensor", "--seconds", "1", "--jobs", "1"]) == 0
    assert "graphs on tensor from seed 0: 0 findings" in capsys.readouterr().out


@pytest.mark.parametrize("path", KEPT, ids=lambda p: p.stem)
@pytest.mark.parametrize("target", ["tensor", "opencl"])
def test_what_was_found_stays_fixed(path, target):
    check(*kept(path), target)


@pytest.mark.parametrize(("target", "share"), [("tensor", 1 / 3), ("opencl", 1)])
def test_no_finding_in_new_graphs(target, share):
    results = list(fuzz(target, 0, 12, SECONDS * share, jobs=1))
    assert results
    assert not [f"seed {r.name}: {r.reason}" for r in results if r.status == FAILED]
