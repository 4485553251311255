"""Random bits: every element computes the Philox call that it is part of, from its place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir import Builder, Op, Sym, Value
from tilewright.ir.expr import Expr
from tilewright.ir.graph_ops.random import (
    CALL_BITS,
    PHILOX_FACTORS,
    PHILOX_KEY_STEPS,
    PHILOX_ROUNDS,
    region,
)
from tilewright.passes.lower.lowering import dim_names, elementwise, lowering, result_type
from tilewright.passes.lower.scalars import Scalar, Scalars


@lowering("graph.random_bits")
def random_bits(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The bits of the element in the words of its call."""
    t, bits = result_type(op), op.integer("bits")
    whole, origin = region(op.attributes)
    place: Expr = 0
    for d, (name, first) in enumerate(zip(dim_names(t.rank), origin, strict=True)):
        place = place + (Sym(name) + first) * prod(whole[d + 1 :])
    per_call, per_word = CALL_BITS // bits, 32 // bits
    index_dtype = "i32" if prod(whole) < 1 << 31 else "i64"

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        call = i.index(place // per_call, index_dtype)
        high = i.const(0, "u32")
        if index_dtype == "i64":
            high = i.cast(call.apply("shr", 32), "u32")
        counter = [i.cast(call, "u32"), i.const(op.integer("stream"), "u32"), p[2], high]
        words = _philox(i, counter, [p[0], p[1]])
        which = i.index(place // per_word % 4)
        low, middle, upper = (which.equals(n) for n in range(3))
        word = low.select(words[0], middle.select(words[1], upper.select(words[2], words[3])))
        if per_word > 1:
            word = word.apply("shr", i.index(place % per_word * bits, "u32"))
        return i.cast(word, t.dtype)

    return [elementwise(b, [x[0], x[0], x[1]], t, body, [(0,), (1,), ()])]


def _philox(i: Scalars, counter: Sequence[Scalar], key: Sequence[Scalar]) -> list[Scalar]:
    """The four words of Philox4x32-10; products are those of 64 bits, which GPUs have for two words."""
    c, k = list(counter), list(key)
    for _ in range(PHILOX_ROUNDS):
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
