"""Random bits: known answers, statistics, places in a whole array, and the same integers on every target."""

import numpy as np
import pytest
from scipy import stats

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import InputError, TensorType, Value
from tilewright.ir.graph_code import GraphWriter
from tilewright.ir.graph_ops.random import philox
from tilewright.ir.nodes import Block, Func, Level, Module
from tilewright.ir.opdef import op_def

U32 = 0xFFFFFFFF
SEED, STEP = np.array([7, 11], np.uint32), np.array(3, np.uint32)


def bits_of(shape, bits=16, stream=0, seed=SEED, step=STEP, whole=(), origin=()):
    definition = op_def("graph.random_bits")
    attrs = {"shape": shape, "bits": bits, "stream": stream, "whole": whole, "origin": origin}
    return definition.evaluate([seed, step], dict(definition.complete(attrs)))[0]


def mask_of(shape, kept, bits=16, stream=0, seed=SEED, step=STEP, whole=(), origin=()):
    attrs = {"shape": shape, "kept": kept, "bits": bits, "stream": stream, "whole": whole, "origin": origin}
    definition = op_def("graph.random_mask")
    return definition.evaluate([seed, step], dict(definition.complete(attrs)))[0]


def module_of(name="random_bits", **attrs):
    w = GraphWriter()
    params = Value(TensorType("u32", (2,)), "seed"), Value(TensorType("u32", ()), "step")
    out = w.op(name, *map(w.tensor, params), **attrs).value
    w.builder.emit("graph.return", [out], types=())
    return Module("m", (Func(Level.GRAPH, "main", Block(params, w.ops), (out.type,)),))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((U32,) * 4, (U32,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_the_authors(counter, key, words):
    assert " ".join(f"{int(w):08x}" for w in philox(counter, key)) == words


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_elements_are_the_bytes_of_calls_in_order(bits):
    n = 3 * 128 // bits + 1
    calls = [b"".join(w.tobytes() for w in philox((c, 5, 3, 0), (7, 11))) for c in range(4)]
    expected = np.frombuffer(b"".join(calls), f"<u{bits // 8}")[:n]
    assert np.array_equal(bits_of((n,), bits, stream=5), expected)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_box_holds_what_the_whole_array_holds_there(bits):
    whole = bits_of((5, 7, 9), bits)
    box = bits_of((2, 7, 4), bits, whole=(5, 7, 9), origin=(3, 0, 2))
    assert np.array_equal(box, whole[3:5, :, 2:6])


def test_places_beyond_32_bits_are_other_calls():
    far = {"whole": (1 << 20, 1 << 20), "origin": (1 << 19, 0)}
    (word, *_) = philox(((1 << 39) // 8 & U32, 0, 3, (1 << 39) // 8 >> 32), (7, 11))
    assert bits_of((1, 2), **far)[0, 0] == word & 0xFFFF
    assert not np.array_equal(bits_of((1, 64), **far), bits_of((1, 64)))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_bytes_are_uniform(bits):
    octets = bits_of((1 << 18,), bits).view(np.uint8)
    assert stats.chisquare(np.bincount(octets, minlength=256)).pvalue > 1e-3
    pairs = octets[::2].astype(int) // 8 * 32 + octets[1::2] // 8
    assert stats.chisquare(np.bincount(pairs, minlength=1024)).pvalue > 1e-3


def centred(a):
    return a.astype(np.float64) - (2.0 ** (8 * a.itemsize) - 1) / 2


def correlation(a, b):
    """In standard deviations of that of independent numbers."""
    a, b = centred(a), centred(b)
    return (a * b).mean() / (a.std() * b.std()) * np.sqrt(a.size)


def test_neighbours_are_not_correlated():
    a = bits_of((1 << 17,))
    for lag in (*range(1, 18), 64, 1024, 4096):
        assert abs(correlation(a[:-lag], a[lag:])) < 4.5, lag


@pytest.mark.parametrize(
    "other", [{"stream": 1}, {"step": np.array(4, np.uint32)}, {"seed": np.array([8, 11], np.uint32)}]
)
def test_streams_steps_and_seeds_are_independent(other):
    a, b = bits_of((1 << 16,)), bits_of((1 << 16,), **other)
    assert abs(correlation(a, b)) < 4.5
    assert abs(np.mean(a == b) * (1 << 16) - 1) < 5
    joint = np.bincount((a >> 12).astype(int) * 16 + (b >> 12), minlength=256).reshape(16, 16)
    assert stats.chi2_contingency(joint).pvalue > 1e-3


@pytest.mark.parametrize("target", ["opencl", pytest.param("emulator", marks=pytest.mark.emulator)])
@pytest.mark.parametrize(
    ("bits", "shape", "more"),
    [
        (8, (3, 45), {}),
        (16, (2, 64), {}),
        (32, (33,), {}),
        (16, (), {}),
        (16, (3, 5), {"whole": (1 << 20, 1 << 20), "origin": (1 << 19, 77)}),
    ],
)
def test_targets_give_the_same_integers(bits, shape, more, target):
    module = module_of(shape=shape, bits=bits, stream=2, **more)
    with tw.compile(module, target) as exe:
        (got,) = exe(SEED, STEP)
    assert got.dtype == f"uint{bits}"
    assert np.array_equal(got, tw.interpret(module, SEED, STEP)[0])


def test_the_kernel_compiles_for_a_gpu():
    exe = tw.compile(module_of(shape=(64, 64), bits=16), "cuda:sm_90a")
    for kernel in exe.plan.kernels:
        assert compile_cuda(kernel.source, arch="sm_90a")


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"bits": 12}, "expected 8, 16 or 32 bits, got 12"),
        ({"stream": -1}, "expected a stream from 0 to 4294967295, got -1"),
        ({"shape": (-1,)}, "entries of at least 0 in 'shape'"),
        ({"whole": (3,), "origin": (2,)}, r"expected \(4,\) from \(2,\) on inside \(3,\)"),
        ({"whole": (9,)}, "expected 1 entries of at least 0 in 'origin'"),
    ],
)
def test_bad_attributes_are_refused(attrs, message):
    with pytest.raises(InputError, match=message):
        module_of(**{"shape": (4,), **attrs})


def test_a_seed_of_another_type_is_refused():
    w = GraphWriter()
    seed = w.tensor(Value(TensorType("i64", (2,)), "seed"))
    with pytest.raises(InputError, match=r"random_bits: expected a seed u32\[2\], got i64\[2\]"):
        w.op("random_bits", seed, w.number(0, "u32"), shape=(4,))


@pytest.mark.parametrize(
    ("kept", "bits"), [(1, 1), (3, 2), (5, 3), (58982, 16), (3, 32), ((1 << 32) - 1, 32)]
)
def test_a_mask_compares_digits_of_words(kept, bits):
    """An element holds where the number whose digits are the other bits of its words is below its share."""
    digits = f"{kept:0{bits}b}".rstrip("0")
    calls = -(-len(digits) // 4)
    words = [philox((2 * calls + c, 6, 3, 0), (7, 11), 7) for c in range(calls)]
    drawn = [int(w) for call in words for w in call][: len(digits)]
    column = [sum((~w >> i & 1) << (len(digits) - 1 - k) for k, w in enumerate(drawn)) for i in range(32)]
    expected = [number < int(digits, 2) for number in column]
    assert mask_of((3, 32), kept, bits, stream=6)[2].tolist() == expected


@pytest.mark.parametrize(("kept", "bits"), [(1, 1), (3, 2), (58982, 16), (655, 16), (65535, 16)])
def test_masks_hold_the_share_that_is_kept(kept, bits):
    mask, share = mask_of((1 << 19,), kept, bits), kept / (1 << bits)
    assert abs(mask.mean() - share) < 4.5 * np.sqrt(share * (1 - share) / mask.size)
    columns = mask.reshape(-1, 32).mean(0)  # each bit of a word by itself
    assert np.abs(columns - share).max() < 5.0 * np.sqrt(share * (1 - share) * 32 / mask.size)


def test_neighbours_streams_and_steps_of_masks_are_not_correlated():
    a = mask_of((1 << 18,), 3, 2).astype(np.float64)
    a = (a - a.mean()) / a.std()
    others = [mask_of((1 << 18,), 3, 2, stream=1), mask_of((1 << 18,), 3, 2, step=np.array(4, np.uint32))]
    for other in others:
        b = (other - other.mean()) / other.std()
        assert abs((a * b).mean()) * np.sqrt(a.size) < 4.5
    for lag in (*range(1, 34), 64, 1024, 4096):
        assert abs((a[:-lag] * a[lag:]).mean()) * np.sqrt(a.size) < 4.5, lag


def test_a_box_of_a_mask_holds_what_the_whole_mask_holds_there():
    whole = mask_of((5, 7, 9), 40000)
    assert np.array_equal(mask_of((2, 7, 4), 40000, whole=(5, 7, 9), origin=(3, 0, 2)), whole[3:5, :, 2:6])


@pytest.mark.parametrize("target", ["opencl", pytest.param("emulator", marks=pytest.mark.emulator)])
@pytest.mark.parametrize(
    ("kept", "bits", "shape", "more"),
    [
        (58982, 16, (3, 45), {}),
        (1, 1, (2, 64), {}),
        (5, 3, (), {}),
        (77, 16, (3, 5), {"whole": (1 << 20, 1 << 20), "origin": (1 << 19, 77)}),
    ],
)
def test_targets_give_the_same_masks(kept, bits, shape, more, target):
    module = module_of("random_mask", shape=shape, kept=kept, bits=bits, stream=2, **more)
    with tw.compile(module, target) as exe:
        (got,) = exe(SEED, STEP)
    assert got.dtype == bool
    assert np.array_equal(got, tw.interpret(module, SEED, STEP)[0])


def test_a_shift_by_a_place_in_a_word_needs_no_check():
    """C leaves shifts by all bits of a word undefined; the index says that there are fewer."""
    (kernel,) = tw.compile(
        module_of("random_mask", shape=(64, 64), kept=3, bits=2), "cuda:sm_90a"
    ).plan.kernels
    assert "tw_shr_u32" not in kernel.source
    assert compile_cuda(kernel.source, arch="sm_90a")


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"bits": 33}, "expected 1 to 32 bits, got 33"),
        ({"kept": 0}, "expected to keep 1 to 3 of 4, got 0"),
        ({"kept": 4}, "expected to keep 1 to 3 of 4, got 4"),
        ({"stream": -1}, "expected a stream from 0 to 4294967295, got -1"),
    ],
)
def test_bad_attributes_of_masks_are_refused(attrs, message):
    with pytest.raises(InputError, match=message):
        module_of("random_mask", **{"shape": (4,), "kept": 3, "bits": 2, **attrs})
