"""Execution plans: every fault is found, JSON round-trips, hostile JSON is one clear error."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_samples import diamond, floats

from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.check import find_faults, validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelResources
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json

PLAN = diamond()


def with_buffer(which: str, **changes: object) -> ExecutionPlan:
    buffers = tuple(replace(b, **changes) if b.name == which else b for b in PLAN.buffers)
    return PLAN.replace(buffers=buffers)


def with_launch(index: int, **changes: object) -> ExecutionPlan:
    launches = [*PLAN.launches]
    launches[index] = replace(launches[index], **changes)
    return PLAN.replace(launches=tuple(launches))


def with_kernel(index: int, **changes: object) -> ExecutionPlan:
    kernels = [*PLAN.kernels]
    kernels[index] = replace(kernels[index], **changes)
    return PLAN.replace(kernels=tuple(kernels))


def test_a_good_plan_has_no_faults():
    assert find_faults(PLAN) == []
    assert validate(PLAN) is PLAN


END = max(b.offset + b.nbytes for b in PLAN.buffers if b.kind == "arena")
FAULTY = {
    "version": (PLAN.replace(format_version=4), "format version"),
    "target": (PLAN.replace(target="a b"), "target name"),
    "arena too small": (PLAN.replace(arena_bytes=256), "ends at byte"),
    "arena a byte too small": (PLAN.replace(arena_bytes=END - 1), "ends at byte"),
    "arena negative": (PLAN.replace(arena_bytes=-1), "arena_bytes"),
    "arena huge": (PLAN.replace(arena_bytes=1 << 60), "arena_bytes"),
    "buffer twice": (PLAN.replace(buffers=(*PLAN.buffers, PLAN.buffers[0])), "occurs twice"),
    "buffer name": (with_buffer("w", name="a b"), "name"),
    "dtype": (with_buffer("t0", dtype="object"), "element type"),
    "kind": (with_buffer("t0", kind="stack"), "expected a kind"),
    "negative extent": (with_buffer("t0", shape=(-1,)), "extents"),
    "overflowing shape": (with_buffer("t0", shape=(1 << 40, 1 << 40)), "nbytes"),
    "nbytes too small": (with_buffer("t0", nbytes=8), "nbytes"),
    "unaligned": (with_buffer("t1", offset=4), "multiple of 256"),
    "offset of input": (with_buffer("x", offset=256), "only arena and alias"),
    "base of arena": (with_buffer("t0", base="x"), "only alias buffers have a base"),
    "input unlisted": (PLAN.replace(inputs=()), "not listed"),
    "input twice": (PLAN.replace(inputs=("x", "x")), "occurs twice"),
    "input of other kind": (PLAN.replace(inputs=("x", "w")), "no buffer of kind input"),
    "unknown output": (PLAN.replace(outputs=("q",)), "no buffer"),
    "unknown kernel": (with_launch(0, kernel="q"), "no such kernel"),
    "unknown argument": (with_launch(0, args=("x", "q")), "is no buffer"),
    "empty grid": (with_launch(0, grid=(0, 1, 1)), "grid"),
    "wide grid": (with_launch(0, grid=(1, 1 << 16, 1)), "grid"),
    "short grid": (with_launch(0, grid=(1, 1)), "grid"),
    "block": (with_launch(0, block=0), "block"),
    "bool for a count": (with_launch(0, block=True), "block"),
    "stream": (with_launch(0, stream=-1), "stream"),
    "shared": (with_launch(0, shared_bytes=1 << 30), "shared_bytes"),
    "own dep": (with_launch(1, deps=(1,)), "earlier"),
    "later dep": (with_launch(1, deps=(3,)), "earlier"),
    "dep twice": (with_launch(1, deps=(0, 0)), "repeat"),
    "write position": (with_launch(0, writes=(2,)), "positions"),
    "write of input": (with_launch(0, writes=(0,)), "kind input"),
    "write of constant": (with_launch(3, writes=(2,)), "kind constant"),
    "entry": (with_kernel(0, entry="a;b"), "identifier"),
    "kernel name": (with_kernel(0, name="a/b"), "expected a name"),
    "language": (with_kernel(0, language="python"), "language"),
    "resources": (with_kernel(0, resources=KernelResources(-1, 0, 0)), "resources"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_every_fault_is_named(case):
    plan, expected = FAULTY[case]
    with pytest.raises(InputError, match=expected):
        validate(plan)


def test_faults_are_gathered():
    faults = find_faults(with_launch(0, block=0, stream=-1))
    assert [fault.split(":")[0] for fault in faults] == ["launch 0 (scale)"] * 2


ALIAS_FAULTS = {
    "unknown base": ({"base": "q"}, "unknown buffer"),
    "past the end": ({"base": "t0", "offset": 8}, "ends at byte"),
    "odd offset": ({"base": "t0", "offset": 2, "nbytes": 4, "shape": (1,)}, "element size"),
    "itself": ({"base": "v"}, "alias itself"),
}


@pytest.mark.parametrize("case", ALIAS_FAULTS)
def test_alias_faults(case):
    changes, expected = ALIAS_FAULTS[case]
    view = replace(floats("v", "alias"), **changes)
    with pytest.raises(InputError, match=expected):
        validate(PLAN.replace(buffers=(*PLAN.buffers, view)))


def test_an_alias_is_located_inside_its_base():
    view = Buffer("v", "float32", (4,), "alias", 16, 64, "t1")
    plan = validate(PLAN.replace(buffers=(*PLAN.buffers, view)))
    assert plan.locate("v") == (plan.buffer_by_name["t1"], 64)
    assert plan.locate("t1") == (plan.buffer_by_name["t1"], 0)


def test_json_round_trip_with_everything_apart():
    plan = with_kernel(1, binary=b"\x7fELF", arch="sm_90a", resources=KernelResources(32, 0, 1024))
    text = plan_to_json(plan, sources=False)
    assert "y[i]" not in text
    sources = {kernel.name: kernel.source for kernel in plan.kernels}
    assert plan_from_json(text, sources=sources, binaries={"shift": b"\x7fELF"}) == plan
    again = plan_from_json(plan_to_json(PLAN))
    assert again == PLAN
    assert plan_to_json(again) == plan_to_json(PLAN)


def test_missing_and_stray_code():
    with pytest.raises(InputError, match="source of kernel 'scale' is missing"):
        plan_from_json(plan_to_json(PLAN, sources=False))
    with pytest.raises(InputError, match="not announced"):
        plan_from_json(plan_to_json(PLAN), binaries={"scale": b"x"})
    with pytest.raises(InputError, match="binary of kernel 'scale' is missing"):
        plan_from_json(plan_to_json(with_kernel(0, binary=b"x")))


HOSTILE = {
    "no JSON": "{",
    "list": "[]",
    "deep": "[" * 100_000,
    "NaN": plan_to_json(PLAN).replace('"arena_bytes": 12288', '"arena_bytes": NaN'),
    "float": plan_to_json(PLAN).replace('"arena_bytes": 12288', '"arena_bytes": 12288.0'),
    "many digits": plan_to_json(PLAN).replace("12288", "9" * 100_000),
    "bool": plan_to_json(PLAN).replace('"block": 128', '"block": true'),
    "key twice": plan_to_json(PLAN).replace('"inputs":', '"inputs": [], "inputs":'),
    "missing key": plan_to_json(PLAN).replace('"inputs":', '"in":'),
    "unknown key": plan_to_json(PLAN).replace('"inputs":', '"x": 1, "inputs":'),
    "nested args": plan_to_json(PLAN).replace('["x", "t0"]', '[["x"], "t0"]'),
    "surrogate": plan_to_json(PLAN)
    .replace('"net:double#0"', '"\\ud800"')
    .replace('"target": "test"', '"target": 1'),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_json_is_one_clear_error(case):
    assert HOSTILE[case] != plan_to_json(PLAN)
    with pytest.raises(InputError) as caught:
        plan_from_json(HOSTILE[case])
    assert len(str(caught.value)) < 1000


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(node: object, prefix: tuple = ()) -> list[tuple]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [prefix] + [path for key, child in children for path in paths(child, (*prefix, key))]


@given(data=st.data(), value=JSON_VALUES)
def test_any_replaced_part_is_accepted_or_refused_cleanly(data, value):
    tree = json.loads(plan_to_json(PLAN))
    path = data.draw(st.sampled_from(paths(tree)[1:]))
    node = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    try:
        plan = plan_from_json(json.dumps(tree))
    except InputError:
        return
    assert plan_from_json(plan_to_json(plan)) == plan


@given(st.text(max_size=200))
def test_any_text_is_refused_cleanly(text):
    with pytest.raises(InputError):
        plan_from_json(text)
