"""Partitioners by name: legal groups, results that stay the same, options, registered kinds of groups."""

from pathlib import Path

import numpy as np
import pytest
from partition_graphs import crossing_program, random_program

import tilewright as tw
from tilewright import frontends
from tilewright.costmodel import load_hardware
from tilewright.ir import InputError, interpret, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.pipelines import official_stages
from tilewright.passes.tensor.fusion.covers import waiting
from tilewright.passes.tensor.fusion.kernel_groups import partition
from tilewright.passes.tensor.fusion.legality import (
    legal,
)
from tilewright.passes.tensor.fusion.op_graph import OpGraph
from tilewright.passes.tensor.fusion.partitioners import (
    PARTITIONERS,
    as_partition,
    choose,
    partition_by,
    price,
    sets_of,
)

NETWORKS = Path(__file__).parents[4] / "data" / "relay"
CONTEXT = PassContext(
    target="cuda:sm_90a", hardware=load_hardware("cuda:sm_90a"), verify_each=True, reproducer_folder=None
)


def inputs_of(module, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params]


def before_fusion(name):
    module = frontends.relay.load(str(NETWORKS / f"{name}.relay"), params="random")
    stages = official_stages(module.main.level, "cuda").until("fuse-kernels")
    context = PassContext(target=CONTEXT.target, hardware=CONTEXT.hardware)
    return run_pipeline(module, stages.whole, context)


@pytest.mark.parametrize("name", PARTITIONERS)
def test_kernels_compute_what_the_ops_do(name):
    rng = np.random.default_rng(21)
    for _ in range(10):
        module = random_program(rng, 8)
        passes = f"forward-copies, dce, fuse-kernels{{partitioner={name}}}, split-dims, merge-dims"
        out = run_pipeline(module, Pipeline.parse(passes), CONTEXT)
        given = inputs_of(module)
        for a, b in zip(interpret(module, *given), interpret(out, *given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("partitioner", "seed"), [("exact", 0), ("exact", 1), ("maximal", 1), ("maximal", 2)]
)
def test_kernels_run_as_the_ops_do(partitioner, seed):
    """On OpenCL: the templates lower every group that is called legal."""
    module = random_program(np.random.default_rng(40 + seed), 8)
    given = inputs_of(module, seed)
    wanted = interpret(module, *given)
    got = tw.compile(module, target="opencl", partitioner=partitioner)(*given)
    for a, b in zip(wanted, got if isinstance(got, list | tuple) else [got], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("read", ["[0, 0]", "[3, j]", "[j, i]"])
def test_a_map_read_at_another_point_keeps_its_dimensions(read):
    """One kernel of both maps; merging its dimensions must not turn the read into one at the own point."""
    square = "{ ^(%a: f32) %b = scalar.mul(%a, %a) : f32 scalar.yield(%b) }"
    add = "{ ^(%a: f32, %b: f32) %c = scalar.add(%a, %b) : f32 scalar.yield(%c) }"
    domain = "par = (i: 4, j: 4)"
    module = parse(
        "module @m { tensor.func @main(%x: f32[4, 4], %y: f32[4, 4]) -> f32[4, 4] {\n"
        f"%0 = tensor.map(%x, {domain}, reads = [[i, j]]) : f32[4, 4] {square}\n"
        f"%1 = tensor.map(%y, %0, {domain}, reads = [[i, j], {read}]) : f32[4, 4] {add}\n"
        "tensor.return(%1) } }"
    )
    passes = "fuse-kernels{partitioner=exact}, split-dims, merge-dims"
    out = run_pipeline(module, Pipeline.parse(passes), CONTEXT)
    assert sum(op.name == "tensor.call" for op in out.main.body.ops) == 1
    given = inputs_of(module)
    for a, b in zip(interpret(module, *given), interpret(out, *given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_rules_find_only_legal_groups():
    rng = np.random.default_rng(8)
    for _ in range(60):
        func = random_program(rng, 8).main
        graph = OpGraph(func)
        for s in sets_of(graph, partition(func)):
            assert legal(graph, s) is None or sums_of_one_array(graph, s) or small_maps(graph, s)


def small_maps(graph, s):
    """Small maps over the same points share a launch; what is legal otherwise hangs together."""
    ops = [graph.ops[i] for i in range(len(graph.ops)) if s >> i & 1]
    return (
        {op.name for op in ops} == {"tensor.map"} and len({op["par"] for op in ops}) == 1 and graph.convex(s)
    )


def sums_of_one_array(graph, s):
    """Sums of the same points share a walk; what is legal otherwise hangs together by what it makes."""
    ops = [graph.ops[i] for i in range(len(graph.ops)) if s >> i & 1]
    sums = [op for op in ops if op.name == "tensor.reduce"]
    return len(sums) > 1 and bool(set.intersection(*(set(op.operands) for op in sums)))


@pytest.mark.parametrize("name", ["mlp", "lstm", "resnet20_cifar"])
def test_exact_is_no_worse_on_networks(name):
    priced = price(before_fusion(name).main, CONTEXT)
    found = {n: choose(priced, n) for n in PARTITIONERS}
    assert priced.complete
    assert found["exact"].exact
    assert found["exact"].seconds <= min(c.seconds for c in found.values()) + 1e-15
    assert len(found["exact"].sets) <= len(found["rules"].sets)
    assert all(not waiting(priced.graph, c.sets) for c in found.values())
    part = as_partition(priced.graph, found["exact"].sets)
    assert sum(len(g.ops) for g in part.groups) == len(priced.graph.ops)


def test_reasons_name_what_is_missing():
    graph = OpGraph(crossing_program().main)
    assert legal(graph, 0b000001) is None
    assert legal(graph, 0b000011) == "its ops share no values"
    assert legal(graph, 0b011101) == "two reductions, each with tiles of its own"
    assert "wait" in str(legal(graph, 0b111111 ^ 0b001000))


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="partitioner among rules, exact, algorithm1, maximal, none"):
        partition_by(crossing_program().main, "best", CONTEXT)
    with pytest.raises(InputError, match="expected partitioner among"):
        tw.compile(crossing_program(), target="opencl", partitioner="best")
