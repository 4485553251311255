"""The driver of pattern rewrites, replacing values, naming constants."""

import numpy as np
import pytest

from tilewright.ir import Constants, WorkError, equal_funcs, parse, show_func, verify, walk
from tilewright.ir.modules.constant_pool import MAX_NAME, ConstantPool
from tilewright.passes import pattern, producers, replace_values, rewrite_func, rewrite_module, use_counts


def graph(body: str, arguments: str = "%x: f32[4]", result: str = "f32[4]"):
    return parse(f"module @m {{ graph.func @main({arguments}) -> {result} {{ {body} }} }}")


RELUS = graph("""
    %0 = graph.relu(%x) : f32[4] loc "a"
    %1 = graph.relu(%0) : f32[4] loc "b"
    %2 = graph.relu(%1) : f32[4] loc "c"
    graph.return(%2)""")


@pattern("graph.relu")
def relu_of_relu(op, rewriter):
    before = rewriter.producer(op.operands[0])
    return [op.operands[0]] if before is not None and before.name == "graph.relu" else None


@pattern("graph.relu")
def relu_as_maximum(op, rewriter):
    zero = rewriter.value("graph.subtract", op.operands[0], op.operands[0])
    return [rewriter.value("graph.maximum", op.operands[0], zero, hint="y")]


def names(func):
    return [op.name.partition(".")[2] for op in walk(func.body)]


def test_chains_are_rewritten_in_one_go():
    func = rewrite_func(RELUS.main, [relu_of_relu])
    assert names(func) == ["relu", "return"]
    assert rewrite_func(func, [relu_of_relu]) is func


def test_new_ops_keep_the_location_and_the_types_fit():
    module = rewrite_module(RELUS, [relu_as_maximum], level="graph")
    verify(module)
    assert names(module.main) == ["subtract", "maximum"] * 3 + ["return"]
    assert [op.loc for op in module.main.body.ops] == ["a", "a", "b", "b", "c", "c", ""]


def test_a_rewrite_that_rebuilds_its_op_is_refused():
    @pattern("graph.relu")
    def lazy(op, rewriter):
        return [rewriter.value("graph.relu", *op.operands)]

    @pattern("graph.relu")
    def idle(op, rewriter):
        return op.results

    for p in (lazy, idle):
        with pytest.raises(WorkError, match=f"pattern '{p.name}' makes no progress"):
            rewrite_func(RELUS.main, [p])


def test_patterns_that_undo_each_other_are_refused():
    @pattern("graph.relu")
    def to_abs(op, rewriter):
        return [rewriter.value("graph.abs", *op.operands)]

    @pattern("graph.abs")
    def to_relu(op, rewriter):
        return [rewriter.value("graph.relu", *op.operands)]

    with pytest.raises(WorkError, match=r"pattern 'to_(abs|relu)' keeps matching what it builds"):
        rewrite_func(RELUS.main, [to_abs, to_relu])


def test_patterns_that_grow_from_round_to_round_are_refused():
    @pattern("graph.return")
    def grow(op, rewriter):
        rewriter.emit("graph.return", [rewriter.value("graph.relu", v) for v in op.operands])
        return []

    with pytest.raises(WorkError, match="pattern 'grow'"):
        rewrite_func(RELUS.main, [grow])


def test_replacements_of_another_type_are_refused():
    @pattern("graph.relu")
    def reshape(op, rewriter):
        return [rewriter.value("graph.reshape", *op.operands, newshape=(2, 2))]

    with pytest.raises(WorkError, match=r"'reshape' replaces \(f32\[4\]\) of graph.relu by \(f32\[2, 2\]\)"):
        rewrite_func(RELUS.main, [reshape])


def test_uses_count_what_the_round_replaced():
    seen: list[int] = []

    @pattern("graph.abs")
    def look(op, rewriter):
        seen.append(rewriter.uses(op.operands[0]))

    module = graph("""
        %0 = graph.relu(%x) : f32[4]
        %1 = graph.relu(%0) : f32[4]
        %2 = graph.abs(%1) : f32[4]
        %3 = graph.add(%2, %1) : f32[4]
        graph.return(%3)""")
    rewrite_func(module.main, [relu_of_relu, look])
    assert seen[0] >= 2  # relu_of_relu moved both uses of %1 to %0
    assert seen[-1] == 2


def test_values_are_replaced_in_bodies_too():
    module = parse("""
    module @m { thread.func @k(%x: f32[4], %y: f32[4], grid = [1, 1, 1], block = 4) {
        %0 = thread.load(%x, at = [tid]) : f32
        %1 = thread.load(%x, at = [0]) : f32
        thread.loop(var = i, extent = 2) { thread.store(%0, %y, at = [tid]) }
        thread.return()
    } }""")
    body = module["k"].body
    first, second = body.ops[0].result, body.ops[1].result
    assert replace_values(body, {}) is body
    assert replace_values(body, {second: first}) is body  # nobody uses the second
    new = replace_values(body, {first: second})
    assert use_counts(new)[second] == 1
    assert use_counts(new)[first] == 0
    assert new.ops[:2] == body.ops[:2]
    assert producers(body)[first] is body.ops[0]


def test_new_constants_have_names_that_depend_on_content_only():
    given = Constants({"w": np.zeros(2), "v": np.ones(2)})
    pool = ConstantPool(given)
    assert pool.constants is given
    assert pool.add("w", np.zeros(2)) == "w"
    assert pool.constants is given
    assert [pool.add("w", np.ones(2)), pool.add("w", np.ones(2)), pool.add("w", np.full(2, 3.0))] == [
        "w.2",
        "w.2",
        "w.3",
    ]
    assert list(pool.constants) == ["w", "v", "w.2", "w.3"]
    long = pool.add("x" * 500, np.ones(1))
    assert len(long) <= MAX_NAME
    assert long == ConstantPool().add("x" * 500, np.ones(1))


def test_rewriting_is_deterministic():
    texts = {show_func(rewrite_func(RELUS.main, [relu_as_maximum])) for _ in range(3)}
    assert len(texts) == 1
    assert equal_funcs(*[rewrite_func(RELUS.main, [relu_as_maximum]) for _ in range(2)])
