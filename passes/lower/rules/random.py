"""Random bits and masks: every element computes the Philox calls that it is part of, from its place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir import Builder, Op, Sym, Value
from tilewright.ir.expr import Expr
from tilewright.ir.graph_ops.random import (
    CALL_BITS,
    MASK_ROUNDS,
    PHILOX_FACTORS,
    PHILOX_KEY_STEPS,
    PHILOX_ROUNDS,
    WORD_BITS,
    digits,
    mask_calls,
    region,
)
from tilewright.passes.lower.lowering import dim_names, elementwise, lowering, result_type
from tilewright.passes.lower.scalars import Scalar, Scalars


@lowering("graph.random_bits")
def random_bits(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The bits of the element in the words of its call."""
    t, bits = result_type(op), op.integer("bits")
    place = _place(op)
    per_call, per_word = CALL_BITS // bits, WORD_BITS // bits

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        words = _call(i, op, place // per_call, p, PHILOX_ROUNDS)
        which = i.index(place // per_word % 4)
        low, middle, upper = (which.equals(n) for n in range(3))
        word = low.select(words[0], middle.select(words[1], upper.select(words[2], words[3])))
        if per_word > 1:
            word = word.apply("shr", i.index(place % per_word * bits, "u32"))
        return i.cast(word, t.dtype)

    return [elementwise(b, [x[0], x[0], x[1]], t, body, [(0,), (1,), ()])]


@lowering("graph.random_mask")
def random_mask(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The bit of the element in the word that its group of 32 computes."""
    t, wanted = result_type(op), digits(op.integer("kept"), op.integer("bits"))
    place = _place(op)
    calls = mask_calls(wanted)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        first = place // WORD_BITS * calls
        words = [w for n in range(calls) for w in _call(i, op, first + n, p, MASK_ROUNDS)]
        kept = words[len(wanted) - 1]  # the last digit is 1, and behind it there is nothing
        for word, digit in reversed(list(zip(words, wanted[:-1], strict=False))):
            kept = word.apply("bit_or" if digit else "bit_and", kept)
        bit = kept.apply("shr", i.index(place % WORD_BITS, "u32")).apply("bit_and", i.const(1, "u32"))
        return bit.apply("ne", i.const(0, "u32"))

    return [elementwise(b, [x[0], x[0], x[1]], t, body, [(0,), (1,), ()])]


def _place(op: Op) -> Expr:
    """The number of an element in the whole array."""
    whole, origin = region(op.attributes)
    place: Expr = 0
    for d, (name, first) in enumerate(zip(dim_names(len(origin)), origin, strict=True)):
        place = place + (Sym(name) + first) * prod(whole[d + 1 :])
    return place


def _call(i: Scalars, op: Op, number: Expr, p: Sequence[Scalar], rounds: int) -> list[Scalar]:
    """The words of a call with a number; p: the two words of the seed, and the step."""
    wide = prod(region(op.attributes)[0]) >= 1 << 31
    call = i.index(number, "i64" if wide else "i32")
    high = i.cast(call.apply("shr", 32), "u32") if wide else i.const(0, "u32")
    counter = [i.cast(call, "u32"), i.const(op.integer("stream"), "u32"), p[2], high]
    return _philox(i, counter, [p[0], p[1]], rounds)


def _philox(i: Scalars, counter: Sequence[Scalar], key: Sequence[Scalar], rounds: int) -> list[Scalar]:
    """The four words of Philox4x32; products are those of 64 bits, which GPUs have for two words."""
    c, k = list(counter), list(key)
    for _ in range(rounds):
        products = [i.cast(c[2 * n], "u64") * PHILOX_FACTORS[n] for n in (0, 1)]
        high = [i.cast(v.apply("shr", 32), "u32") for v in products]
        low = [i.cast(v, "u32") for v in products]
        c = [
            high[1].apply("bit_xor", c[1]).apply("bit_xor", k[0]),
            low[1],
            high[0].apply("bit_xor", c[3]).apply("bit_xor", k[1]),
            low[0],
        ]
        k = [k[n] + PHILOX_KEY_STEPS[n] for n in (0, 1)]
    return c
