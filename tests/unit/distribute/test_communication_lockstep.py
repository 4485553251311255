"""All ranks' modules interpreted together: what each communication gives, and what is refused."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.errors import InputError
from tilewright.ir.interpreter.lockstep import interpret_ranks

X = np.arange(16, dtype=np.float32).reshape(2, 8)


def rank(body, result="f32[2, 8]"):
    """A module on %x: f32[2, 8] that returns %y."""
    return tw.parse(
        f"module @m {{ graph.func @main(%x: f32[2, 8]) -> {result} {{ {body} graph.return(%y) }} }}"
    )


def cut(start, end):
    return (
        f"%p = graph.strided_slice(%x, begin = [0, {start}], size = [2, {end - start}], strides = [1, 1])"
        f" : f32[2, {end - start}] "
    )


def group(name, place, count, shape, more, ranks=(0, 1, 2)):
    return f"%y = graph.{name}(%p, rank = {place}, ranks = {list(ranks[:count])}, {more}) : f32{shape} "


def test_halo_exchange_with_overlaps_and_an_empty_member():
    owned, needed = [[0, 4], [4, 4], [3, 8]], [[0, 6], [2, 5], [7, 7]]
    modules = []
    for r in range(3):
        shape = [2, needed[r][1] - needed[r][0]]
        text = cut(*owned[r]) + group(
            "halo_exchange", r, 3, shape, f"axis = 1, owned = {owned}, needed = {needed}"
        )
        modules.append(rank(text, f"f32{shape}"))
    for (low, high), (got,) in zip(needed, interpret_ranks(modules, X), strict=True):
        np.testing.assert_array_equal(got, X[:, low:high])


def test_gather_and_reductions():
    extents = [5, 0, 3]
    cuts = [(0, 5), (5, 5), (5, 8)]
    more = f"axis = 1, extents = {extents}"
    modules = [rank(cut(*c) + group("all_gather", r, 3, [2, 8], more)) for r, c in enumerate(cuts)]
    assert all(np.array_equal(y, X) for (y,) in interpret_ranks(modules, X))
    modules = [
        rank(cut(r, r + 4) + group("all_reduce", r, 2, [2, 4], 'reduction = "max"'), "f32[2, 4]")
        for r in (0, 1)
    ]
    assert all(np.array_equal(y, X[:, 1:5]) for (y,) in interpret_ranks(modules, X))
    more = "axis = 1, extents = [1, 3]"
    parts = [
        rank(cut(r, r + 4) + group("reduce_scatter", r, 2, [2, n], more), f"f32[2, {n}]")
        for r, n in enumerate((1, 3))
    ]
    (first,), (second,) = interpret_ranks(parts, X.astype(np.float64), precision="fp64")
    np.testing.assert_array_equal(np.concatenate([first, second], 1), X[:, :4] + X[:, 1:5])


def send(to, tag=0):
    return f"graph.send(%p, to = {to}, tag = {tag}) "


def receive(source, tag=0, shape="[2, 4]"):
    return f'%y = graph.recv(source = {source}, tag = {tag}, dtype = "f32", shape = {shape}) : f32{shape} '


def test_messages_match_by_tag_and_in_order():
    first = (
        cut(0, 4)
        + send(1, 7)
        + cut(4, 8).replace("%p", "%q")
        + send(1, 3).replace("%p", "%q")
        + "%y = graph.relu(%x) : f32[2, 8] "
    )
    second = receive(0, 3).replace("%y", "%late") + receive(0, 7)
    got = interpret_ranks([rank(first), rank(second, "f32[2, 4]")], X)
    np.testing.assert_array_equal(got[1][0], X[:, :4])


def refused(message, *modules):
    with pytest.raises(InputError, match=message):
        interpret_ranks(modules, X)


def test_refusals_name_rank_and_op():
    own = "%y = graph.relu(%x) : f32[2, 8] "
    wait = receive(1), receive(0)
    refused(
        r"for ever: rank 0, graph.recv \(source 1, tag 0\); rank 1, graph.recv \(source 0, tag 0\)",
        *(rank(w, "f32[2, 4]") for w in wait),
    )
    refused(
        "rank 0: what graph.send sent to rank 1 with tag 5 is never received",
        rank(cut(0, 4) + send(1, 5) + own),
        rank(own),
    )
    refused(
        r"rank 1, graph.recv: expected f32\[2, 3\] from rank 0 with tag 0, got f32\[2, 4\]",
        rank(cut(0, 4) + send(1) + own),
        rank(receive(0, shape="[2, 3]"), "f32[2, 3]"),
    )
    refused(r"rank 0, graph.send: expected another rank among 0..0, got 3", rank(cut(0, 4) + send(3) + own))
    gather = cut(0, 4) + group("all_gather", 0, 2, [2, 8], "axis = 1, extents = [4, 4]")
    refused(r"position 0 of ranks \[0, 1\] to be this rank 1", rank(gather), rank(gather))
    reduce = cut(0, 4) + group("all_reduce", 1, 2, [2, 4], 'reduction = "sum"')
    refused(
        "rank 0, graph.all_gather: rank 1 of the same group does graph.all_reduce",
        rank(gather),
        rank(reduce, "f32[2, 4]"),
    )
    other = cut(0, 3) + group("all_gather", 1, 2, [2, 8], "axis = 1, extents = [5, 3]")
    refused("graph.all_gather with another extents", rank(gather), rank(other))
    refused(r"for ever: rank 0, graph.all_gather \(ranks \[0, 1\]\); rank 1 is done", rank(gather), rank(own))
