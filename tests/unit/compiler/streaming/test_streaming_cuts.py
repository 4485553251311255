"""Cutting networks into steps: amounts of memory, the line of ops, exact cuts, equal steps, split tables."""

import itertools
import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontends.zoo.gpt import gpt
from tilewright.ir import InputError, Module, UnsupportedError
from tilewright.streaming.activations import pieces_of
from tilewright.streaming.memory_size import memory_bytes, shown_bytes
from tilewright.streaming.parts.line import Line
from tilewright.streaming.parts.step_modules import share_templates, steps_of, window_of
from tilewright.streaming.step_planning import choose_cuts, split_large, weight_limit

TINY = {"layers": 3, "width": 16, "heads": 2, "vocabulary": 30, "context": 6, "sequence": 5}


def run_steps(steps, inputs):
    """Interpret steps one after the other: values cross cuts by the steps' own lists."""
    line = steps[0].line
    values = dict(zip(line.parameters, inputs, strict=True))
    for step in steps:
        results = tw.interpret(step.with_data(), *(values[v] for v in step.inputs))
        values |= dict(zip(step.outputs, results, strict=True))
    return [values[v] for v in line.returned]


def tokens(module, seed=0):
    shape = module.input_types[0].shape
    return np.random.default_rng(seed).integers(-2, 33, shape).astype(np.int32)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("2GiB", 2 << 30), ("512 MB", 512_000_000), ("4096", 4096), ("1.5kib", 1536), (7, 7), ("10b", 10)],
)
def test_amounts_of_memory(text, nbytes):
    assert memory_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "2 gigs", "-1GiB", "0", 0, 1.5, "GiB", True])
def test_other_amounts_are_refused(text):
    with pytest.raises(InputError, match="--memory-cap"):
        memory_bytes(text, where="--memory-cap")


def test_amounts_are_shown_rounded_up():
    assert [shown_bytes(n) for n in (10, 1 << 20, (1 << 20) + 1)] == ["10B", "1MiB", "1.01MiB"]


def brute_force(line, limit):
    """The best cuts among all, by the rule in the documentation of `choose_cuts`."""
    count = len(line.ops)
    median = int(np.median(line.cut_bytes[1:count]))
    best = None
    for number in range(count):
        for inner in itertools.combinations(range(1, count), number):
            bounds = [0, *inner, count]
            cuts = list(itertools.pairwise(bounds))
            weights = [
                sum({k: n for needed in line.constant_bytes[a:b] for k, n in needed.items()}.values())
                for a, b in cuts
            ]
            if max(weights) <= limit:
                crossed = sum(line.cut_bytes[i] for i in inner)
                cost = (len(cuts) * median + crossed, sum(w * w for w in weights))
                best = min(best or cost, cost)
    return best


@pytest.mark.parametrize("limit", [200, 700, 1500, 4000, 100_000])
def test_cuts_are_the_best_of_all(limit):
    text = """
    module @net {
      graph.func @main(%x: f32[3, 8]) -> f32[3, 8] {
        %a = graph.constant(name = "a") : f32[16, 8]
        %b = graph.constant(name = "b") : f32[8, 16]
        %c = graph.constant(name = "c") : f32[8]
        %d = graph.constant(name = "d") : f32[16]
        %0 = graph.dense(%x, %a) : f32[3, 16]
        %1 = graph.add(%0, %d) : f32[3, 16]
        %2 = graph.relu(%1) : f32[3, 16]
        %3 = graph.dense(%2, %b) : f32[3, 8]
        %4 = graph.add(%3, %c) : f32[3, 8]
        %5 = graph.add(%4, %x) : f32[3, 8]
        %6 = graph.multiply(%5, %c) : f32[3, 8]
        %7 = graph.dense(%6, %a) : f32[3, 16]
        %8 = graph.dense(%7, %b) : f32[3, 8]
        graph.return(%8)
      }
    }
    """
    line = Line.of(tw.parse(text))
    cuts, wanted = choose_cuts(line, limit), brute_force(line, limit)
    if wanted is None:
        assert cuts is None
        return
    assert [a for a, _ in cuts] == [0, *(b for _, b in cuts[:-1])]
    assert cuts[-1][1] == len(line.ops)
    weights = [
        sum({k: n for needed in line.constant_bytes[a:b] for k, n in needed.items()}.values())
        for a, b in cuts
    ]
    crossed = sum(line.cut_bytes[a] for a, _ in cuts[1:])
    steps_and_cuts = len(cuts) * int(np.median(line.cut_bytes[1 : len(line.ops)])) + crossed
    assert (steps_and_cuts, sum(w * w for w in weights)) == wanted


@pytest.mark.parametrize("limit", [14_000, 24_000, 1_000_000])
def test_steps_compute_what_the_network_does(limit):
    module = gpt(**TINY)
    line = Line.of(module)
    steps = steps_of(line, choose_cuts(line, limit))
    x = tokens(module)
    np.testing.assert_array_equal(run_steps(steps, [x])[0], tw.interpret(module, x)[0])


def test_equal_blocks_are_equal_modules():
    line = Line.of(gpt(**TINY))
    steps = steps_of(line, choose_cuts(line, 14_000))
    shared = share_templates(steps)
    assert len(steps) > 3
    assert len(set(shared)) < len(steps)
    for number, first in enumerate(shared):
        texts = [re.sub(r' loc ".*"', "", tw.show(steps[i].module)) for i in (number, first)]
        assert texts[0] == texts[1]
        assert number == first or steps[number].constants != steps[first].constants


def test_windows_hold_what_lives_together():
    line = Line.of(gpt(**TINY))
    steps = steps_of(line, choose_cuts(line, 14_000))
    window = window_of(steps)
    live = set(line.parameters)
    for number, step in enumerate(steps):
        live |= set(step.outputs)
        places = sorted((window.offsets[v], window.offsets[v] + v.tensor.nbytes) for v in live)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places))
        assert places[-1][1] <= window.nbytes
        later = {v for s in steps[number + 1 :] for v in s.inputs} | set(line.returned)
        live &= later


@pytest.mark.parametrize("mode", ["clip", "fast"])
def test_large_tables_are_split_by_rows(mode):
    module = gpt(**TINY)
    main = module.main
    ops = tuple(op.with_attrs(mode=mode) if op.name == "graph.take" else op for op in main.body.ops)
    module = module.with_funcs((main.with_body(main.body.with_ops(ops)),))
    line = split_large(Line.of(module), 700)  # 11 of 30 rows: three pieces of 10
    assert {(r.begin, r.end) for r in line.rows.values() if r.source == "embed.tokens"} == {
        (0, 10), (10, 20), (20, 30),
    }  # fmt: skip
    assert max(sum(needed.values()) for needed in line.constant_bytes) <= 704
    steps = steps_of(line, choose_cuts(line, 1400))
    x = tokens(module)
    (got,), (wanted,) = run_steps(steps, [x]), tw.interpret(module, x)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_split_stays():
    line = Line.of(gpt(**TINY))
    assert split_large(line, 10) is line  # less than a row
    assert split_large(line, 1 << 20) is line
    wraps = line.module.main
    ops = tuple(op.with_attrs(mode="wrap") if op.name == "graph.take" else op for op in wraps.body.ops)
    module = line.module.with_funcs((wraps.with_body(wraps.body.with_ops(ops)),))
    (before, *_), (after, *_) = line.ops, split_large(Line.of(module), 700).ops
    assert (before.name, after.name) == ("graph.take", "graph.take")


def test_networks_that_cannot_be_cut_are_refused():
    constant = 'module @n { graph.func @main() -> f32[1] { %0 = graph.constant(name = "a") : f32[1] '
    with pytest.raises(UnsupportedError, match="depend on the inputs"):
        Line.of(tw.parse(constant + "graph.return(%0) } }"))
    with pytest.raises(InputError, match="at least one op"):
        Line.of(tw.parse("module @n { graph.func @main(%x: f32[1]) -> f32[1] { graph.return(%x) } }"))
    assert isinstance(Line.of(gpt(**TINY)).module, Module)


def test_pieces_of_scratch_files_are_used_again_when_nobody_reads_them():
    line = Line.of(gpt(**{**TINY, "layers": 6}))
    steps = steps_of(line, choose_cuts(line, 5_000))
    pieces = pieces_of(steps)
    assert len(set(pieces)) < len(steps) / 2
    holds = {}
    maker = {v: k for k, step in enumerate(steps) for v in step.outputs}
    for number, step in enumerate(steps):
        assert all(holds[pieces[maker[v]]] == maker[v] for v in step.inputs if v in maker)
        kinds = [v.tensor for v in step.outputs]
        assert kinds == [v.tensor for v in steps[pieces.index(pieces[number])].outputs]
        holds[pieces[number]] = number
    assert all(holds[pieces[maker[v]]] == maker[v] for v in line.returned)


def test_steps_are_not_few_where_weights_are_many():
    mib = 1 << 20
    assert weight_limit(100 * mib, 5 * mib, 100 * mib) == 100 * mib  # all fit
    assert weight_limit(1200 * mib, 5 * mib, 1000 * mib) == 100 * mib  # a twelfth
    assert weight_limit(1200 * mib, 5 * mib, 150 * mib) == 75 * mib  # half of the room
    assert weight_limit(120 * mib, 5 * mib, 100 * mib) == 32 * mib  # no smaller steps than needed
    assert weight_limit(1200 * mib, 300 * mib, 1000 * mib) == 300 * mib  # what one op needs
