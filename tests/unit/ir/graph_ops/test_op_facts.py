"""Facts that graph ops state of themselves: none may be missing, and what they say agrees with the ops."""

import ast
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.ir import Builder, InputError, TensorType, Value, define
from tilewright.ir.facts import SAME_MEMORY, UNSTATED, Elements, Facts, no_flops
from tilewright.ir.opdef import facts_of, is_defined, op_defs
from tilewright.ir.types import FLOATS
from tilewright.tools.fuzz.generate import DRAWERS, draw
from tilewright.tools.fuzz.program import RandomGraph

ROOT = Path(__file__).parents[4]
GRAPH = [d for d in op_defs() if d.name.startswith("graph.")]
COMPLETE = facts_of("graph.tanh")


def test_every_graph_op_states_every_fact():
    assert len(GRAPH) > 150
    assert not [d.name for d in GRAPH if d.facts is None or d.facts.unstated()]


@pytest.mark.parametrize("name", [f.name for f in fields(Facts)])
def test_a_graph_op_that_leaves_a_fact_out_is_not_registered(name):
    facts = replace(COMPLETE, **{name: UNSTATED})
    with pytest.raises(ValueError, match=rf"^op 'graph.never' must state the fact '{name}' \(.+\)$"):
        define("graph.never", ("x",), "doc", facts=facts)
    assert not is_defined("graph.never")


def test_a_graph_op_without_facts_is_not_registered():
    with pytest.raises(ValueError, match=r"op 'graph.never' must state the fact 'elements'"):
        define("graph.never", ("x",), "doc")


def test_ops_of_other_levels_have_no_facts_to_ask_for():
    with pytest.raises(InputError, match=r"expected a graph op, which states facts, got 'tensor.map'"):
        facts_of("tensor.map")


def named_ops(source):
    """Lines that name a graph op elsewhere than as what a builder makes, a constant or the return."""
    tree = ast.parse(source)
    made = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.args
        and getattr(node.func, "attr", "") in ("value", "emit", "do")
    }
    ops = {d.name for d in GRAPH} - {"graph.constant", "graph.return"}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in made and node.value in ops
    ] + [node.lineno for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and prefixed(node)]


def prefixed(text):
    """Return whether a formatted text begins as the names of graph ops do."""
    first = text.values[0] if text.values else None
    return isinstance(first, ast.Constant) and first.value == "graph."


@pytest.mark.parametrize("folder", ["passes/graph/distribute", "costmodel"])
def test_no_file_knows_ops_by_name(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 20
    assert not {str(f.relative_to(ROOT)): lines for f in files if (lines := named_ops(f.read_text()))}


@pytest.mark.parametrize(
    "source", ['TABLE = {"graph.dense"}', 'TABLE = [f"graph.{n}" for n in NAMES]', 'op.name == "graph.dense"']
)
def test_a_name_of_an_op_is_found(source):
    assert named_ops(source) == [1]
    assert named_ops('b.value("graph.dense", x, w)') == []


#: what moves, names or makes elements computes nothing
IDLE = {
    *SAME_MEMORY,
    *(Elements.CREATES, Elements.RETURNS, Elements.CUTS, Elements.STRIDES, Elements.MOVES, Elements.LOOKS_UP),
    *(Elements.JOINS, Elements.SPLITS, Elements.REPEATS),
}


def test_ops_that_compute_nothing_have_no_work():
    assert not [d.name for d in GRAPH if d.facts.elements in IDLE and d.facts.flops is not no_flops]


#: ops of a network whose work is written down by hand: a multiply-add counts two
WORK = {
    "graph.dft": ((2, 8), [(2, 8), (2, 8)], {"inverse": False}, 2 * (2 * 8) * (2 * 2 * 8)),
    "graph.stft": (
        (2, 5, 3, 2),
        [(2, 16), (6,)],
        {"n_fft": 8, "hop_length": 4, "win_length": 6, "normalized": False, "onesided": True},
        (2 * 5 * 3 * 2) * 2 * 6,
    ),
    "graph.correlation": (
        (1, 9, 6, 6),
        [(1, 3, 8, 8), (1, 3, 8, 8)],
        {"kernel_size": 3, "max_displacement": 1, "stride1": 1, "stride2": 1, "padding": (1, 1, 1, 1)},
        (9 * 6 * 6) * 2 * (3 * 3 * 3),
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_the_work_of_sums_of_products(name):
    expected, operands, attrs, flops = WORK[name]
    b = Builder()
    b.emit(name, [Value(TensorType("f32", s)) for s in operands], attrs)
    (op,) = b.ops
    assert op.results[0].tensor.shape == expected
    assert facts_of(name).flops(op) == flops


def test_the_work_of_an_octave_convolution_is_that_of_its_parts():
    b = Builder()
    maps, kernel = [(1, 2, 8, 8), (1, 2, 4, 4)], (2, 2, 3, 3)
    operands = [Value(TensorType("f32", s)) for s in (*maps, *[kernel] * 4)]
    b.emit("graph.octave_conv2d", operands, {"padding": (1, 1, 1, 1)})
    (op,) = b.ops
    convolutions = 2 * (2 * 8 * 8 + 3 * (2 * 4 * 4)) * (2 * 3 * 3)
    mean, additions = (2 * 4 * 4) * 4, 2 * 8 * 8 + 2 * 4 * 4
    assert facts_of(op.name).flops(op) == convolutions + mean + additions


def drawn(seeds=range(4)):
    """A few programs with every op that is drawn."""
    for name in DRAWERS:
        for seed in seeds:
            p = RandomGraph(seed)
            if draw(p, name):
                yield p


def test_labels_name_dimensions_of_one_extent():
    checked = set()
    for p in drawn():
        for op in p.builder.ops:
            labels = facts_of(op.name).division(op)
            if labels is None:
                continue
            values = [v.tensor.shape for v in (*op.operands, *op.results)]
            dims = [*labels.operands, *labels.results]
            assert [len(d) for d in dims] == [len(s) for s in values], op.name
            pairs = {(k, n) for d, s in zip(dims, values, strict=True) for k, n in zip(d, s, strict=True)}
            named = [k for k, _ in pairs if k is not None]
            assert len(named) == len(set(named)), (op.name, labels, values)
            checked.add(op.name)
    assert len(checked) > 120


def test_exact_results_are_bits_of_operands_or_numbers_that_were_given():
    checked = set()
    for p in drawn():
        arrays = {e.value: e.native for e in p.entries}
        for op in p.builder.ops:
            floats = [r for r in op.results if r.tensor.dtype in FLOATS]
            if not facts_of(op.name).exact or not floats or op.name == "graph.constant":
                continue
            given = [a for _, a in op.attrs if isinstance(a, int | float)]
            for result in floats:
                found = arrays[result]
                known = [np.abs(arrays[v].astype(found.dtype)).ravel() for v in op.operands]
                known.append(np.abs(np.asarray([0, *given]).astype(found.dtype)))
                assert np.isin(np.abs(found), np.concatenate(known)).all(), op.name
            checked.add(op.name)
    assert len(checked) > 40
