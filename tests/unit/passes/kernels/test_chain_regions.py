"""Boxes of intermediates, against every index that a block really reads."""

from itertools import product

import numpy as np
import pytest

from tilewright.ir import parse
from tilewright.ir.expr import substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import reads
from tilewright.passes.kernels.chain.regions import Span, read_box, whole

BODY = "{ ^(%a: f32, %acc: f32) %s = scalar.add(%a, %acc) : f32 scalar.yield(%s) }"


def reading(*at: str):
    text = f"""module @m {{ tensor.func @k(%x: f32[90, 90]) -> f32[8, 9] {{
      %0 = tensor.reduce(%x, par = (i: 8, j: 9), red = (r: 3, s: 4), reads = [[{", ".join(at)}]],
        fill = [0.0]) : f32[8, 9] {BODY}
      tensor.return(%0) }} }}"""
    return parse(text).funcs[0].body.ops[0]


def brute(op, first, tile):
    """Smallest and largest index read in each dimension by the block that owns `tile` from `first` on."""
    seen = []
    for i, j, r, s in product(range(tile[0]), range(tile[1]), range(3), range(4)):
        env = {"i": first[0] + i, "j": first[1] + j, "r": r, "s": s}
        seen.append([simplify(substitute(e, env)) for e in reads(op)[0]])
    found = np.array(seen)
    return found.min(axis=0), found.max(axis=0)


@pytest.mark.parametrize(
    "at",
    [
        ("i + r - 1", "2 * j + s"),
        ("i * 3 - 2 * r", "40 - j - s"),
        ("r", "i + j + s"),
        ("i // 2 + r", "j % 4 + s"),
        ("7", "i * 9 + j"),
    ],
)
def test_boxes_hold_every_read(at):
    op = reading(*at)
    tile = (2, 3)
    domain = (Span((("i", 1),), 0, tile[0]), Span((("j", 1),), 0, tile[1]))
    box = read_box(op, reads(op)[0], domain)
    for first in product(range(0, 8, tile[0]), range(0, 9, tile[1])):
        low, high = brute(op, first, tile)
        origins = dict(zip("ij", first, strict=True))
        for span, a, b in zip(box, low, high, strict=True):
            base = simplify(span.base(origins))
            assert base <= a
            assert b <= base + span.extent - 1


def test_affine_boxes_are_exact():
    op = reading("i + r - 1", "2 * j + s")
    domain = (Span((("i", 1),), 0, 2), Span((("j", 1),), 0, 3))
    assert read_box(op, reads(op)[0], domain) == (
        Span((("i", 1),), -1, 4),
        Span((("j", 2),), 0, 8),
    )


def test_hulls_of_boxes_that_move_alike_and_differently():
    a, b = Span((("i", 1),), -1, 4), Span((("i", 1),), 2, 4)
    assert a.hull(b, {"i": 6}) == Span((("i", 1),), -1, 7)
    assert a.hull(whole(5), {"i": 6}) == Span((), -1, 10)  # -1 to 8 over all blocks
