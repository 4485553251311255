"""Random bits and masks: functions of a seed, a step, a stream and the place of an element, by Philox4x32.

Philox is a counter-based generator: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011. Its keyed bijection of 128-bit counters has no state, so every element can be computed
alone, in any order, on any device, and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
#: rounds of masks: the fewest with which the authors' Philox4x32 passes all tests of BigCrush
MASK_ROUNDS = 7
#: bits of the four words that one call gives
CALL_BITS = 128
#: bits of a word, and words of a call
WORD_BITS, CALL_WORDS = 32, 4
#: operations on 32-bit words of a round: two products with two words each, four exclusive ors and two
#: additions to the key
_ROUND_OPERATIONS = 10
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


def digits(kept: int, bits: int) -> tuple[bool, ...]:
    """The binary digits of kept / 2^bits behind the point, up to the last one that is set."""
    binary = f"{kept:0{bits}b}".rstrip("0")
    return tuple(d == "1" for d in binary)


def mask_calls(wanted: Sequence[bool]) -> int:
    """Calls that give a word for each of these digits."""
    return -(-len(wanted) // CALL_WORDS)


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    bits = attrs["bits"]
    require(bits in (8, 16, 32), f"expected 8, 16 or 32 bits, got {bits}")
    return [_drawn(f"u{bits}", types, attrs)]


def _infer_mask(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    bits, kept = attrs["bits"], attrs["kept"]
    require(1 <= bits <= 32, f"expected 1 to 32 bits, got {bits}")
    require(0 < kept < 1 << bits, f"expected to keep 1 to {(1 << bits) - 1} of {1 << bits}, got {kept}")
    return [_drawn("bool", types, attrs)]


def _drawn(dtype: str, types: Sequence[Type], attrs: Attrs) -> TensorType:
    """The type of an array that is drawn; checks the operands, the stream, and the box in the whole array."""
    seed, step = tensors(types)
    require((seed.dtype, seed.shape) == ("u32", (2,)), f"expected a seed u32[2], got {seed}")
    require((step.dtype, step.shape) == ("u32", ()), f"expected a step u32[], got {step}")
    stream, rank = attrs["stream"], len(attrs["shape"])
    require(0 <= stream < 1 << 32, f"expected a stream from 0 to {(1 << 32) - 1}, got {stream}")
    out = TensorType(dtype, entries(attrs["shape"], rank, "shape"))
    if attrs["whole"] or attrs["origin"]:
        require(rank > 0, "expected neither 'whole' nor 'origin' for one element")
        whole = TensorType(dtype, entries(attrs["whole"], rank, "whole"))
        origin = entries(attrs["origin"], rank, "origin")
        inside = all(o + n <= w for o, n, w in zip(origin, out.shape, whole.shape, strict=True))
        require(inside, f"expected {out.shape} from {origin} on inside {whole.shape}")
    return out


def _places(attrs: Attrs) -> np.ndarray:
    """The numbers of the elements in the whole array, as u64."""
    shape = tuple(attrs["shape"])
    whole, origin = region(attrs)
    place = np.zeros(shape, np.uint64)
    for d, (n, first) in enumerate(zip(shape, origin, strict=True)):
        along = np.arange(first, first + n, dtype=np.uint64) * np.uint64(prod(whole[d + 1 :]))
        place += along.reshape(-1, *(1,) * (len(shape) - 1 - d))
    return place


def _words(calls: np.ndarray, inputs: Sequence[np.ndarray], attrs: Attrs, rounds: int) -> np.ndarray:
    """The words [.., 4] of calls with these numbers."""
    seed, step = inputs
    counter = (calls & _WORD, attrs["stream"], step, calls >> np.uint64(32))
    words = np.stack(np.broadcast_arrays(*philox(counter, tuple(seed), rounds)), axis=-1)
    return words.reshape(*calls.shape, CALL_WORDS)


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    shape, bits = tuple(attrs["shape"]), attrs["bits"]
    calls, element = np.divmod(_places(attrs), np.uint64(CALL_BITS // bits))
    # one call serves all of its elements
    needed, which = np.unique(calls, return_inverse=True)
    words = _words(needed, inputs, attrs, PHILOX_ROUNDS)
    per_word = np.uint64(32 // bits)
    word = words[which.reshape(-1), (element // per_word).reshape(-1)]
    shift = (element % per_word).reshape(-1).astype(np.uint32) * np.uint32(bits)
    return [(word >> shift).astype(numpy_dtype(f"u{bits}")).reshape(shape)]


def _evaluate_mask(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    shape, wanted = tuple(attrs["shape"]), digits(attrs["kept"], attrs["bits"])
    groups, column = np.divmod(_places(attrs), np.uint64(WORD_BITS))
    needed, which = np.unique(groups, return_inverse=True)
    calls = mask_calls(wanted)
    numbers = needed[:, None] * np.uint64(calls) + np.arange(calls, dtype=np.uint64)
    words = _words(numbers, inputs, attrs, MASK_ROUNDS).reshape(len(needed), -1)
    kept = np.zeros(len(needed), np.uint32)
    for k in reversed(range(len(wanted))):
        kept = words[:, k] | kept if wanted[k] else words[:, k] & kept
    word = kept[which.reshape(-1)]
    return [(word >> column.reshape(-1).astype(np.uint32) & np.uint32(1)).astype(np.bool_).reshape(shape)]


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
    return -(-elements * op.integer("bits") // CALL_BITS) * PHILOX_ROUNDS * _ROUND_OPERATIONS


def _mask_operations(op: Op) -> int:
    """Those of all calls that words of 32 elements need, and of their digits."""
    wanted = digits(op.integer("kept"), op.integer("bits"))
    calls = mask_calls(wanted) * MASK_ROUNDS * _ROUND_OPERATIONS
    return -(-op.result.tensor.size // WORD_BITS) * (calls + len(wanted))


def _facts(operations: Callable[[Op], int]) -> Facts:
    """Return the facts of an op that draws an array by so many operations."""
    return Facts(
        elements=Elements.COMPUTES,
        flops=operations,
        precision=Precision.ANY,
        exact=True,
        division=by_rules(rows=_rows),
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.NONE,
    )


#: from which sequence an array is drawn, and what it is a box of
_BOX = {
    "stream": AttrDef("int", 0, "which of the independent sequences of one seed and step"),
    "whole": AttrDef("ints", (), "shape of the array that the result is a box of; empty: `shape`"),
    "origin": AttrDef("ints", (), "index in it of the first element; empty: zeros"),
}

define(
    "graph.random_bits",
    ("seed", "step"),
    "Independent uniform unsigned integers of `bits` bits (8, 16 or 32), by Philox4x32-10. Element number i "
    "of the whole array in row-major order is part i % n of call i // n, where a call makes n = 128 / bits "
    "elements, lowest bits of the first word first. The key is the seed, the counter the number of the call "
    "(low word), the stream, the step, the number of the call (high word).",
    attrs={"shape": AttrDef("ints"), "bits": AttrDef("int", 16), **_BOX},
    infer=_infer,
    evaluate=_evaluate,
    facts=_facts(_operations),
)

define(
    "graph.random_mask",
    ("seed", "step"),
    "Truth values that hold independently with probability kept / 2^bits, by Philox4x32-7. The digits of "
    "that share are d0, d1, .., dn in binary, the last of them 1. Element number i of the whole array in "
    "row-major order has bit i % 32 of the n + 1 words of group i // 32, which are those of c = "
    "ceil((n + 1) / 4) calls from number c (i // 32) on, with the key and the counter that random_bits has. "
    "It holds where f(w0, d0, f(w1, d1, .. f(wn, dn, 0))) is 1, with f(w, 1, x) = w | x and f(w, 0, x) = "
    "w & x: 32 elements take one operation on words for each digit.",
    attrs={"shape": AttrDef("ints"), "kept": AttrDef("int"), "bits": AttrDef("int", 16), **_BOX},
    infer=_infer_mask,
    evaluate=_evaluate_mask,
    facts=_facts(_mask_operations),
)
