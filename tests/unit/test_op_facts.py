"""Facts that graph ops state of themselves: none may be missing, and what they say agrees with the ops."""

from dataclasses import fields, replace

import pytest

from tilewright.ir import InputError, OpDef, define
from tilewright.ir.facts import UNSTATED, Facts
from tilewright.ir.opdef import facts_of, is_defined, op_defs

GRAPH = [d for d in op_defs() if d.name.startswith("graph.")]
COMPLETE = facts_of("graph.tanh")


def test_every_graph_op_states_every_fact():
    assert len(GRAPH) > 150
    assert not [d.name for d in GRAPH if d.facts is None or d.facts.unstated()]


@pytest.mark.parametrize("name", [f.name for f in fields(Facts)])
def test_a_graph_op_that_leaves_a_fact_out_is_not_registered(name):
    facts = replace(COMPLETE, **{name: UNSTATED})
    with pytest.raises(ValueError, match=rf"^op 'graph.never' must state the fact '{name}' \(.+\)$"):
        define(OpDef("graph.never", ("x",), "doc", facts=facts))
    assert not is_defined("graph.never")


def test_a_graph_op_without_facts_is_not_registered():
    with pytest.raises(ValueError, match=r"op 'graph.never' must state the fact 'elements'"):
        define(OpDef("graph.never", ("x",), "doc"))


def test_ops_of_other_levels_have_no_facts_to_ask_for():
    with pytest.raises(InputError, match=r"expected a graph op, which states facts, got 'tensor.map'"):
        facts_of("tensor.map")
