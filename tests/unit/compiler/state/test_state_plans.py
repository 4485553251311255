"""Plans with state: what is written in place, what is copied, what orders it, and what the checks find."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import tilewright as tw
from tests.samples.state_programs import state_modules
from tilewright.compilation.lowering import build, lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Constants, InputError, Module, parse, show
from tilewright.plan_text.reading import plan_of_module
from tilewright.plan_text.writing import plan_module
from tilewright.runtime.plan.check import find_faults
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.plan.hazards import find_hazards
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json


def module_of(body: str, returned: str, updates: str, results: int, shape: str = "8") -> Module:
    """A module of inputs %x, state %a and %b, all f32 of one shape."""
    t = f"f32[{shape}]"
    text = f"""module @step {{
      graph.func @main(%x: {t}, %a: {t}, %b: {t}, updates = {updates}) -> {", ".join([t] * results)} {{
        {body.replace("T", t)}
        graph.return({returned})
      }}
    }}"""
    extents = [int(n) for n in shape.split(",")]
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=extents).astype(np.float32) for name in ("a", "b", "k")}
    return parse(text).with_constants(Constants(arrays))


def plan_of(module: Module, target: str = "opencl") -> ExecutionPlan:
    return build(lower(module, resolve_target(target)), progress=False)


def copies(plan: ExecutionPlan) -> int:
    return sum(launch.kernel.startswith("store_") for launch in plan.launches)


MOMENTUM = module_of(
    "%0 = graph.add(%a, %x) : T\n%1 = graph.subtract(%b, %0) : T\n%2 = graph.exp(%b) : T",
    "%2, %0, %1",
    "[[1, 1], [2, 2]]",
    3,
)


@pytest.mark.parametrize("target", ["opencl", "cuda:sm_80", "cuda:sm_90a"])
@pytest.mark.parametrize("shape", ["8", "10", "1000, 3", "3, 3, 16, 16", "1"])
def test_elementwise_updates_are_in_place_whatever_the_shape(target, shape):
    module = module_of(
        "%0 = graph.add(%a, %x) : T\n%1 = graph.subtract(%b, %0) : T", "%0, %1", "[[1, 0], [2, 1]]", 2, shape
    )
    lowered = lower(module, resolve_target(target))
    main = lowered.thread.main
    callees = [str(op["callee"].name) for op in main.body.ops if op.name == "tensor.call"]
    assert callees
    assert not any(name.startswith("store_") for name in callees)


@pytest.mark.parametrize(
    ("body", "returned", "updates", "count"),
    [
        ("", "%b, %a", "[[1, 0], [2, 1]]", 3),  # a swap: one copy beside, then two into place
        ("", "%x, %b", "[[1, 0], [2, 1]]", 1),  # an input becomes state
        ("%0 = graph.negative(%a) : T", "%0, %0", "[[1, 0], [2, 1]]", 1),  # one value, two states
        ('%k = graph.constant(name = "k") : T', "%k, %b", "[[1, 0], [2, 1]]", 1),
        ("%0 = graph.negative(%a) : T", "%a, %0, %b", "[[1, 1], [2, 2]]", 1),  # the old value is a result
        ("%0 = graph.reverse(%a, axis = 0) : T", "%0, %b", "[[1, 0], [2, 1]]", 1),  # reads what it overwrites
        ("", "%a, %b", "[[1, 0], [2, 1]]", 0),  # nothing changes
        ("%0 = graph.negative(%b) : T", "%0, %b", "[[1, 0], [2, 1]]", 0),  # reads another state
    ],
)
def test_copies_are_made_where_a_launch_cannot_write_in_place(body, returned, updates, count):
    plan = plan_of(module_of(body, returned, updates, returned.count("%")))
    assert copies(plan) == count
    assert find_hazards(plan) == []


def test_every_reader_of_the_old_value_is_before_the_launch_that_writes_the_new_one():
    plan = plan_of(MOMENTUM)
    writers = {name: i for i, x in enumerate(plan.launches) for p in x.writes if (name := x.args[p])}
    for state, new in plan.new_values.items():
        readers = [i for i, x in enumerate(plan.launches) if state in x.args and i != writers[new]]
        assert all(plan.dag.ancestors[writers[new]] >> i & 1 for i in readers)


def test_an_edge_from_a_reader_to_the_writer_that_is_removed_is_a_hazard():
    plan = plan_of(MOMENTUM)
    writers = {x.args[p]: i for i, x in enumerate(plan.launches) for p in x.writes}
    edges = 0
    for state, new in plan.new_values.items():
        for reader, launch in enumerate(plan.launches):
            if state not in launch.args or reader == writers[new]:
                continue
            edges += 1
            without = tuple(
                replace(x, deps=tuple(d for d in x.deps if (d, i) != (reader, writers[new])))
                for i, x in enumerate(plan.launches)
            )
            (text,) = find_hazards(plan.replace(launches=without))
            assert state in text
            assert "no dependency orders them" in text
    assert edges


def test_reads_on_the_wrong_side_of_the_writer_are_hazards():
    plan = plan_of(MOMENTUM)
    writers = {x.args[p]: i for i, x in enumerate(plan.launches) for p in x.writes}
    own = {writers[new] for new in plan.new_values.values()}
    (at,) = (i for i in range(len(plan.launches)) if i not in own)  # what reads %b alone
    reader, state = plan.launches[at], "b"
    assert state in reader.args
    early = replace(reader, args=tuple(plan.new_values[a] if a == state else a for a in reader.args))
    before = plan.replace(launches=tuple(early if i == at else x for i, x in enumerate(plan.launches)))
    assert any("the new value of the state, before" in text for text in find_hazards(before))
    order = [i for i in range(len(plan.launches)) if i != at]
    moved = [replace(plan.launches[i], deps=(place - 1,) if place else ()) for place, i in enumerate(order)]
    after = plan.replace(launches=(*moved, replace(reader, deps=(len(moved) - 1,))))
    assert any("the old value of the state, after" in text for text in find_hazards(after))


def test_a_write_that_is_not_in_place_is_a_hazard():
    plan = plan_of(MOMENTUM)
    plain = plan.replace(launches=tuple(replace(x, in_place=()) for x in plan.launches))
    assert any("but not in place" in text for text in find_hazards(plain))


def test_what_no_plan_with_state_may_be():
    plan = plan_of(MOMENTUM)
    assert find_faults(plan) == []
    assert plan.format_version == 2
    assert any(
        text.startswith("expected format version 2") and text.endswith("got 1")
        for text in find_faults(plan.replace(format_version=1))
    )
    old = plan.states[0].name
    new = plan.new_values[old]
    renamed = tuple(replace(x, args=tuple(old if a == new else a for a in x.args)) for x in plan.launches)
    assert any("under the name of its old value" in t for t in find_faults(plan.replace(launches=renamed)))
    alias = replace(plan.buffer_by_name[new], name="again")
    assert any("two new values" in t for t in find_faults(plan.replace(buffers=(*plan.buffers, alias))))
    part = tuple(replace(b, shape=(4,), nbytes=16) if b.name == new else b for b in plan.buffers)
    assert any("to be all of it" in t for t in find_faults(plan.replace(buffers=part)))


def test_plans_without_state_keep_their_version():
    plan = plan_of(module_of("%0 = graph.add(%x, %x) : T", "%0", "[]", 1))
    assert (plan.format_version, plan.states) == (1, ())
    assert [b.kind for b in plan.buffers if b.name in ("x", "a")] == ["input", "input"]


@settings(max_examples=10, deadline=None)
@given(module=state_modules())
def test_plans_with_state_survive_json_and_text(module):
    plan = plan_of(module)
    assert plan_from_json(plan_to_json(plan)) == plan
    text = show(plan_module(plan))
    sources = {k.name: k.source for k in plan.kernels}
    assert plan_of_module(parse(text), sources=sources) == plan


def test_state_without_its_constant_or_of_a_name_twice_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="expected constants that the state starts as, got none of a, b"):
        tw.compile(MOMENTUM.with_constants(Constants()), "opencl")
    wrong = MOMENTUM.with_constants(Constants({**MOMENTUM.constants, "a": np.zeros(3, np.float32)}))
    with pytest.raises(InputError, match=r"state 'a': expected a constant of f32\[8\], got float32\[3\]"):
        tw.compile(wrong, "opencl")


def test_an_update_from_a_transposed_gradient_is_in_place():
    text = """module @step {
      graph.func @main(%g: f32[16, 9, 24], %w: f32[16, 24, 9], updates = [[1, 0]]) -> f32[16, 24, 9] {
        %0 = graph.transpose(%g, axes = [0, 2, 1]) : f32[16, 24, 9]
        %1 = graph.subtract(%w, %0) : f32[16, 24, 9]
        graph.return(%1)
      }
    }"""
    lowered = lower(parse(text), resolve_target("cuda:sm_90a"))
    assert [f.name for f in lowered.thread.funcs if f.name.startswith("store_")] == []


def test_an_update_that_reads_another_value_backwards_waits_for_it():
    text = """module @step {
      graph.func @main(%a: f32[3, 4], %b: f32[3, 4], updates = [[0, 0], [1, 1]]) -> f32[3, 4], f32[3, 4] {
        %0 = graph.dense(%a, %a, out_dtype = none) : f32[3, 3]
        %1 = graph.strided_slice(%0, begin = [0, 0], size = [3, 1], strides = [1, 1]) : f32[3, 1]
        %2 = graph.add(%1, %a) : f32[3, 4]
        %3 = graph.reverse(%2, axis = 1) : f32[3, 4]
        graph.return(%a, %3)
      }
    }"""
    for target in ("opencl", "cuda:sm_80"):
        lower(parse(text), resolve_target(target), verify_each=True)


def test_state_keeps_its_dtype_where_values_have_16_bits():
    module = module_of(
        "%0 = graph.dense(%x, %a) : f32[8, 8]\n%1 = graph.subtract(%b, %0) : T", "%0, %a, %1",
        "[[1, 1], [2, 2]]", 3, "8, 8",
    )  # fmt: skip
    lowered = lower(module, resolve_target("opencl"), precision="fp16")
    plan = build(lowered, progress=False)
    assert [b.dtype for b in plan.states] == ["float32", "float32"]
    assert any(b.dtype == "float16" for b in plan.buffers)
