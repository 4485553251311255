"""The space of layouts: published counts by enumeration, orders that are one product, sums of costs."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from tilewright.costmodel import GpuHardware, load_hardware
from tilewright.costmodel.sweep.gemm_orders import gemm_orders
from tilewright.costmodel.sweep.kernel_space import SweptKernel, SweptTensor, layout_costs

SIZES = {"b": 8, "h": 16, "i": 1024, "j": 512, "k": 512, "n": 1024, "p": 64, "u": 4096, "q": 3, "v": 2}

#: per kernel its arrays (`name=dims`, `name~tie=dims`), the dimensions of vectors, and those of lanes
PUBLISHED = {
    "aib": (
        "wkk~w=hpbj wvv~w=hpbj wqq~w=hpbj bk~b=hp bv~b=hp bq~b=hp kk~o=hpbj vv~o=hpbj qq~o=hpbj",
        "bj",
        "bj",
    ),
    "sm": ("in=hbjk out=hbjk mask~d=hbjk drop~d=hbjk", "hbjk", ""),
    "bdrln": ("x=bjn r=bjn s=n b=n lb=n y=bjn ln=bjn lin=bjn diff=bjn std=bj mask=bjn", "bjn", ""),
    "brd": ("x=bju b=u drop=bju mask=bju lin=bju", "bju", "bju"),
    "bsb": ("ln=bjn s=n dy=bjn dln=bjn ds=n db=n", "bjn", "bj"),
    "blnrd": ("dln=bjn std=bj diff=bjn mask=bjn dresid=bjn dlin=bjn", "bjn", ""),
    "bdrb": ("ddrop=bju mask=bju lin=bju dlin=bju db=u", "bju", "bj"),
    "ebsb": ("ln=bjn s=n dresid=bjn x=bjn dlin=bjn dlb=n ds=n db=n dln=bjn", "bjn", "bj"),
    "baob": ("datt=bjn dbo=n", "bjn", "bj"),
    "bs": ("alpha=hbjk mask~d=hbjk drop~d=hbjk dbeta=hbjk", "hbjk", ""),
    "baib": ("dkk=phbj dvv=phbj dqq=phbj dbk=ph dbv=ph dbq=ph", "phbj", "bj"),
    "bei": ("dxatt=bjn dresid=bjn dx=bjn", "bjn", "bjn"),
}
COUNTS = {
    "aib": 4608, "sm": 55296, "bdrln": 1679616, "brd": 11664, "bsb": 1296, "blnrd": 46656, "bdrb": 7776,
    "ebsb": 46656, "baob": 36, "bs": 55296, "baib": 884736, "bei": 1944,
}  # fmt: skip
EINSUMS = (
    "phi,ibj->phbj", "bji,ui->bju", "bju,iu->bji", "phi,phbj->bij", "phbk,phbj->hbjk",
    "phbk,hbjk->phbj", "qphi,ibj->qphbj", "vphi,ibj->vphbj", "bji,bju->iu", "bji,iu->bju",
    "bju,bji->ui", "bju,ui->bji", "phbj,bij->phi", "phi,bij->phbj", "phbj,hbjk->phbk",
    "phbk,phbj->hbjk", "phbj,hbjk->phbk", "phbk,hbjk->phbj", "ibj,phbj->phi", "phi,phbj->ibj",
    "ibj,vphbj->vphi", "vphi,vphbj->ibj", "ibj,qphbj->qphi", "qphi,qphbj->ibj",
)  # fmt: skip


def kernel(name: str, sizes: dict[str, int] = SIZES) -> SweptKernel:
    arrays, vectors, lanes = PUBLISHED[name]
    tensors = []
    for text in arrays.split():
        label, _, dims = text.partition("=")
        array, _, tie = label.partition("~")
        tensors.append(SweptTensor(array, tuple(dims), tie=tie))
    return SweptKernel(name, sizes, tuple(tensors), tuple(vectors), tuple(lanes))


def test_kernels_have_the_published_configurations():
    assert {name: kernel(name).configurations for name in PUBLISHED} == COUNTS
    assert sum(COUNTS.values()) == 2_795_580
    for name in ("baob", "bsb", "bei", "aib", "brd"):
        every = list(kernel(name).enumerate())
        assert len(every) == len(set(every)) == COUNTS[name]


def test_contractions_have_the_published_orders_and_calls():
    orders = calls = 0
    for text in EINSUMS:
        operands, c = text.split("->")
        found = list(gemm_orders(*operands.split(","), c, SIZES))
        distinct = {o.call for o in found}
        assert len(distinct) == (64 if found[0].call.batch > 1 else 8)
        orders, calls = orders + len(found), calls + len(distinct)
    assert (len(EINSUMS), orders, calls) == (24, 1632, 528)


@pytest.mark.parametrize("text", ["phbk,phbj->hbjk", "bji,ui->bju", "phbj,bij->phi"])
def test_a_call_computes_the_contraction(text):
    sizes = dict(zip("pbhjkiu", (2, 3, 4, 5, 6, 7, 8), strict=True))
    operands, c = text.split("->")
    a, b = operands.split(",")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal([sizes[d] for d in names]) for names in (a, b))
    for o in gemm_orders(a, b, c, sizes):
        call = o.call
        flat = [np.ascontiguousarray(np.einsum(f"{old}->{''.join(new)}", v)).ravel()
                for v, old, new in ((x, a, o.a), (y, b, o.b))]  # fmt: skip
        if call.swapped:
            flat.reverse()
        shapes = ((call.m, call.k), (call.k, call.n))
        given = [
            _columns(f, shape[::-1] if t else shape, ld, call.batch, stride)
            for f, shape, t, ld, stride in zip(
                flat, shapes, call.transposed, call.leading, call.strides, strict=False
            )
        ]
        p, q = (g.transpose(0, 2, 1) if t else g for g, t in zip(given, call.transposed, strict=True))
        out = np.zeros(call.batch * call.m * call.n)
        _columns(out, (call.m, call.n), call.leading[2], call.batch, call.strides[2])[...] = p @ q
        wanted = np.einsum(f"{a},{b}->{''.join(o.c)}", x, y)
        np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=1e-12)


def _columns(flat, shape, leading, batch, stride):
    """A batch of matrices in column-major order, as a view."""
    step = flat.itemsize
    strides = (stride * step, step, leading * step)
    return np.lib.stride_tricks.as_strided(flat, (batch, *shape), strides)


def test_sums_price_every_configuration_and_the_best_is_the_least():
    hardware = load_hardware("H100")
    assert isinstance(hardware, GpuHardware)
    small = kernel("bdrb")
    costs = layout_costs(small, hardware, 1e-5)
    every = costs.all_seconds()
    assert every.size == costs.configurations == COUNTS["bdrb"]
    assert costs.best_s == pytest.approx(every.min())
    np.testing.assert_allclose(costs.joint(), every.min(axis=0))
    # in the order of the vectors nothing is added: what is there is what the estimator says of whole vectors
    assert costs.best_s == pytest.approx(1e-5)
    knob = small.knobs.index(("u", "b"))
    worst = [o.index(order) for o, order in zip(costs.orders, (tuple("ubj"),) * 4, strict=False)]
    assert every[(knob, *worst, 0)] > 2 * costs.best_s
    pruned, least = costs.pruned(hardware.dram_bytes_per_s)
    bounds = sum(costs.bytes_of[k].T.reshape((len(small.knobs), *(-1 if k == n else 1 for n in range(5))))
                 for k in range(5)) / hardware.dram_bytes_per_s  # fmt: skip
    assert pruned == np.count_nonzero(bounds > costs.best_s) > 0
    assert least > costs.best_s


def test_orders_are_all_permutations():
    t = SweptTensor("t", ("a", "b", "c"))
    assert set(t.orders) == set(permutations("abc"))
    two = SweptKernel("k", {"a": 2, "b": 3}, (SweptTensor("x", ("a", "b")), SweptTensor("y", ("a",))), ("a",))
    assert list(two.enumerate()) == list(product([("a",)], product([("a", "b"), ("b", "a")], [("a",)])))
