"""Concatenations written in place: the same results, no copies, less memory, plans that stay safe."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from concat_networks import dense_block, network, random_network
from unbuilt_plans import plan_of

import tilewright as tw
from tilewright.frontends import relay
from tilewright.ir.tensor.join_ops import layout_in, placed
from tilewright.ir.types import TensorType
from tilewright.passes import pipelines
from tilewright.passes.graph.forms.set_input_shapes import with_input_shapes
from tilewright.running.checking import relative_error
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.hazards import find_hazards
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json

RELAY = Path(__file__).parents[4] / "data" / "relay"
WITHOUT = pipelines.TENSOR.without("join-concats", "place-concats")


def inputs_of(module, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(t.shape).astype(np.float32) for t in module.input_types]


def agree(module, target):
    """The compiled module, checked against the interpreter."""
    values = inputs_of(module)
    exe = tw.compile(module, target=target)
    assert find_hazards(exe.plan) == []
    for got, wanted in zip(exe(*values), tw.interpret(module, *values), strict=True):
        assert relative_error(got, wanted) < 1e-5
    return exe


def plans_of(module, monkeypatch):
    """Plans without and with the passes."""
    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "TENSOR", WITHOUT)
        before = plan_of(module, precision="fp32-strict")
    return before, plan_of(module, precision="fp32-strict")


@pytest.mark.parametrize("seed", [0, 8, 21])
def test_random_networks_on_opencl(seed):
    agree(random_network(seed, batch=1 + seed % 3), "opencl")


@pytest.mark.parametrize("seed", [5])
def test_random_networks_on_the_emulator(seed):
    agree(random_network(seed, batch=2), "emulator")


def test_random_networks_have_boxes_and_fewer_launches(monkeypatch):
    pairs = [plans_of(random_network(seed, batch=2), monkeypatch) for seed in range(10)]
    assert sum(len(b.launches) for _, b in pairs) < sum(len(a.launches) for a, _ in pairs)
    boxes = [b for _, plan in pairs for b in plan.buffers if b.strides]
    assert any(b.start for b in boxes)
    assert all(find_hazards(plan) == [] for pair in pairs for plan in pair)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_dense_block_is_one_array(batch):
    exe = agree(dense_block(batch, layers=4), "opencl")
    arrays = [b for b in exe.plan.buffers if b.kind == "arena"]
    boxes = [b for b in exe.plan.buffers if b.kind == "alias"]
    assert {b.base for b in boxes} <= {b.name for b in arrays}
    assert len({b.base for b in boxes}) == 1
    assert not any("concatenate" in x.kernel for x in exe.plan.launches)


def test_a_layer_waits_only_for_the_layers_it_reads():
    plan = plan_of(dense_block(2, layers=4), precision="fp32-strict")
    last = {}
    for i, launch in enumerate(plan.launches):
        for position in launch.writes:
            last[launch.args[position]] = i
    whole = plan.locate(plan.outputs[0])[0].name
    writers = sorted(i for name, i in last.items() if plan.locate(name)[0].name == whole)
    readers = [i for i, x in enumerate(plan.launches) for a in x.args if plan.locate(a)[0].name == whole]
    assert len(writers) == 5
    assert min(readers) < max(writers)  # prefixes are read before the array is whole


def branches(batch, results=("%out",)):
    shape, wide = (batch, 8, 6, 6), (batch, 24, 6, 6)
    t = "f32[{}]".format(", ".join(map(str, shape)))
    lines = [
        f"%a = graph.conv2d(%x, %w0) : {t}",
        f"%b = graph.conv2d(%x, %w1, padding = [1, 1, 1, 1]) : {t}",
        f"%c = graph.max_pool2d(%x, pool_size = [3, 3], strides = [1, 1], padding = [1, 1, 1, 1]) : {t}",
        "%out = graph.concatenate(%a, %b, %c, axis = 1) : f32[{}]".format(", ".join(map(str, wide))),
    ]
    params = [("x", shape), ("w0", (8, 8, 1, 1)), ("w1", (8, 8, 3, 3))]
    return network(params, lines, [(r, wide if r == "%out" else shape) for r in results])


def test_branches_are_not_ordered():
    plan = plan_of(branches(4))
    writers = [x for x in plan.launches if any(plan.buffer_by_name[x.args[p]].strides for p in x.writes)]
    assert len(plan.launches) == 3 == len(writers)
    assert all(x.deps == () for x in writers)


@pytest.mark.parametrize("target", ["opencl", "emulator"])
def test_a_piece_that_is_a_result_is_written_twice(target):
    exe = agree(branches(2, ("%out", "%a")), target)
    assert len(exe.plan.launches) == 3


def test_an_input_is_copied_and_nothing_else():
    shape = (2, 4, 6, 6)
    lines = [
        "%a = graph.relu(%x) : f32[2, 4, 6, 6]",
        "%out = graph.concatenate(%a, %x, axis = 1) : f32[2, 8, 6, 6]",
    ]
    exe = agree(network([("x", shape)], lines, [("%out", (2, 8, 6, 6))]), "opencl")
    assert sorted(x.kernel for x in exe.plan.launches) == ["map_0", "piece_0"]


def test_a_plan_travels(tmp_path):
    module = branches(2)
    exe = agree(module, "opencl")
    exe.save(tmp_path / "net.tw")
    values = inputs_of(module)
    again = tw.load(tmp_path / "net.tw")
    assert np.array_equal(again(*values)[0], exe(*values)[0])
    assert plan_from_json(plan_to_json(exe.plan)).buffers == exe.plan.buffers


def test_a_reader_must_wait_for_every_writer():
    plan = plan_of(dense_block(2, layers=2))
    found = 0
    for i, launch in enumerate(plan.launches):
        for dep in launch.deps:
            fewer = replace(launch, deps=tuple(d for d in launch.deps if d != dep))
            broken = plan.replace(launches=(*plan.launches[:i], fewer, *plan.launches[i + 1 :]))
            found += bool(find_hazards(broken))
    assert found >= 2


def test_a_box_that_nobody_writes_is_found():
    plan = plan_of(dense_block(2, layers=2))
    boxes = [b for b in plan.buffers if b.strides]
    moved = replace(boxes[0], shape=(*boxes[0].shape[:1], 1, *boxes[0].shape[2:]))
    broken = plan.replace(buffers=tuple(moved if b is boxes[0] else b for b in plan.buffers))
    assert any("in part only" in text or "writes" in text for text in find_hazards(broken))


def test_a_box_must_lie_in_its_array():
    plan = plan_of(branches(2))
    box = next(b for b in plan.buffers if b.strides)
    for bad in (
        replace(box, strides=(1, 1, 1, 1)),
        replace(box, start=-1),
        replace(box, shape=(2, 25, 6, 6), nbytes=box.nbytes),
    ):
        with pytest.raises(InputError, match=box.name):
            validate(plan.replace(buffers=tuple(bad if b is box else b for b in plan.buffers)))


@pytest.mark.parametrize(
    ("shape", "steps", "wanted", "found"),
    [
        ((8, 32, 49), (3136, 49, 1), (8, 32 * 49), (3136, 1)),
        ((8, 32, 49), (3136, 49, 1), (256, 49), None),
        ((1, 4, 8), (99, 8, 1), (4, 8), (8, 1)),
        ((4, 6), (12, 1), (4, 2, 3), (12, 3, 1)),
    ],
)
def test_layouts_of_boxes(shape, steps, wanted, found):
    assert layout_in(shape, steps, wanted) == found


def test_types_of_boxes_are_text():
    t = placed(TensorType("f32", (2, 3, 4)), (48, 4, 1), 5)
    assert str(t) == "f32[2, 3, 4] by [48, 4, 1] from 5"
    assert t.span == 5 + 48 + 8 + 4
    assert placed(TensorType("f32", (1, 3, 4)), (48, 4, 1), 0) == TensorType("f32", (1, 3, 4))
    assert not t.rows_of(2)
    assert replace(t, start=4).rows_of(4)


@pytest.mark.parametrize(
    ("name", "batch", "launches", "less_memory"),
    [("squeezenet", 1, 8, True)],
)
def test_networks_copy_no_piece(name, batch, launches, less_memory, monkeypatch):
    module = relay.load(RELAY / f"{name}.relay", params="random")
    shapes = {n: (batch, *t.shape[1:]) for n, t in zip(module.input_names, module.input_types, strict=True)}
    before, after = plans_of(with_input_shapes(module, shapes), monkeypatch)
    assert len(before.launches) - len(after.launches) == launches
    assert (after.arena_bytes < before.arena_bytes) is less_memory
    copied = [x.kernel for x in after.launches if x.kernel.startswith(("concatenate", "piece"))]
    assert copied == []
