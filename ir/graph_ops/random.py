"""Random bits: a pure function of a seed, a step, a stream and the place of an element, by Philox4x32-10.

Philox is a counter-based generator: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011. Its keyed bijection of 128-bit counters has no state, so every element can be computed
alone, in any order, on any device, and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.ir.division import SlicedOp, by_rules, replaced
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.operands import entries, require, tensors
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

#: factors of the two products of a round, and what is added to the two words of the key after a round
PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
#: bits of the four words that one call gives
CALL_BITS = 128
#: operations on 32-bit words of one call: per round two products with two words each, four exclusive ors and
#: two additions to the key
_CALL_OPERATIONS = PHILOX_ROUNDS * 10
_WORD = np.uint64(0xFFFFFFFF)


def philox(
    counter: Sequence[np.ndarray | int], key: Sequence[np.ndarray | int], rounds: int = PHILOX_ROUNDS
) -> list[np.ndarray]:
    """The four 32-bit words of Philox4x32 for four words of a counter and two of a key, which broadcast."""
    c = [np.asarray(word, np.uint64) for word in counter]
    k = [np.asarray(word, np.uint64) for word in key]
    for _ in range(rounds):
        products = [c[2 * i] * np.uint64(PHILOX_FACTORS[i]) for i in (0, 1)]
        high, low = [p >> np.uint64(32) for p in products], [p & _WORD for p in products]
        c = [high[1] ^ c[1] ^ k[0], low[1], high[0] ^ c[3] ^ k[1], low[0]]
        k = [(k[i] + np.uint64(PHILOX_KEY_STEPS[i])) & _WORD for i in (0, 1)]
    return [word.astype(np.uint32) for word in c]


def region(attrs: Attrs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of the whole array that the elements belong to, and the index there of the first of them."""
    shape = tuple(attrs["shape"])
    return tuple(attrs["whole"]) or shape, tuple(attrs["origin"]) or (0,) * len(shape)


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    seed, step = tensors(types)
    require((seed.dtype, seed.shape) == ("u32", (2,)), f"expected a seed u32[2], got {seed}")
    require((step.dtype, step.shape) == ("u32", ()), f"expected a step u32[], got {step}")
    bits, stream, rank = attrs["bits"], attrs["stream"], len(attrs["shape"])
    require(bits in (8, 16, 32), f"expected 8, 16 or 32 bits, got {bits}")
    require(0 <= stream < 1 << 32, f"expected a stream from 0 to {(1 << 32) - 1}, got {stream}")
    out = TensorType(f"u{bits}", entries(attrs["shape"], rank, "shape"))
    if attrs["whole"] or attrs["origin"]:
        require(rank > 0, "expected neither 'whole' nor 'origin' for one element")
        whole = TensorType(f"u{bits}", entries(attrs["whole"], rank, "whole"))
        origin = entries(attrs["origin"], rank, "origin")
        inside = all(o + n <= w for o, n, w in zip(origin, out.shape, whole.shape, strict=True))
        require(inside, f"expected {out.shape} from {origin} on inside {whole.shape}")
    return [out]


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    seed, step = inputs
    shape, bits = tuple(attrs["shape"]), attrs["bits"]
    whole, origin = region(attrs)
    place = np.zeros(shape, np.uint64)
    for d, (n, first) in enumerate(zip(shape, origin, strict=True)):
        along = np.arange(first, first + n, dtype=np.uint64) * np.uint64(prod(whole[d + 1 :]))
        place += along.reshape(-1, *(1,) * (len(shape) - 1 - d))
    calls, element = np.divmod(place, np.uint64(CALL_BITS // bits))
    # one call serves all of its elements
    needed, which = np.unique(calls, return_inverse=True)
    counter = (needed & _WORD, attrs["stream"], step, needed >> np.uint64(32))
    words = np.stack(np.broadcast_arrays(*philox(counter, tuple(seed))), axis=-1).reshape(-1, 4)
    per_word = np.uint64(32 // bits)
    word = words[which.reshape(-1), (element // per_word).reshape(-1)]
    shift = (element % per_word).reshape(-1).astype(np.uint32) * np.uint32(bits)
    return [(word >> shift).astype(numpy_dtype(f"u{bits}")).reshape(shape)]


def _rows(op: Op, axis: int, start: int, end: int) -> SlicedOp:
    """Rows of the same whole array: their elements are what they are in all of it."""
    attrs = op.attributes
    whole, origin = region(attrs)
    return SlicedOp(
        (None, None),
        {
            "shape": replaced(tuple(attrs["shape"]), axis, end - start),
            "whole": whole,
            "origin": replaced(origin, axis, origin[axis] + start),
        },
    )


def _operations(op: Op) -> int:
    """Those of all calls that the elements need when each call is made once."""
    elements = op.result.tensor.size
    return -(-elements * op.integer("bits") // CALL_BITS) * _CALL_OPERATIONS


define(
    "graph.random_bits",
    ("seed", "step"),
    "Independent uniform unsigned integers of `bits` bits (8, 16 or 32), by Philox4x32-10. Element number i "
    "of the whole array in row-major order is part i % n of call i // n, where a call makes n = 128 / bits "
    "elements, lowest bits of the first word first. The key is the seed, the counter the number of the call "
    "(low word), the stream, the step, the number of the call (high word).",
    attrs={
        "shape": AttrDef("ints"),
        "bits": AttrDef("int", 16),
        "stream": AttrDef("int", 0, "which of the independent sequences of one seed and step"),
        "whole": AttrDef("ints", (), "shape of the array that the result is a box of; empty: `shape`"),
        "origin": AttrDef("ints", (), "index in it of the first element; empty: zeros"),
    },
    infer=_infer,
    evaluate=_evaluate,
    facts=Facts(
        elements=Elements.COMPUTES,
        flops=_operations,
        precision=Precision.ANY,
        exact=True,
        division=by_rules(rows=_rows),
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.NONE,
    ),
)
