"""Networks that are divided in 16 bits: all ranks agree on dtypes, also those without rows."""

import numpy as np
import pytest
from distributed_networks import Graph, inputs_of
from thread_ranks import ThreadWorld

import tilewright as tw
from tilewright import distributed
from tilewright.distributed.compilation import mode_pipeline
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.runtime.communication.agreement import communications

#: six rows, none of them on rank 1
UNEVEN = 'gather=late, speeds="2,0.01,1"'


def network(deep=True):
    """Halos in 16 bits, and (deep) in float32 of what needs its range; means over the rows of all ranks."""
    g = Graph()
    y = g("conv2d", g.input(2, 3, 6, 5), g.weight(4, 3, 3, 3), padding=(1, 1, 1, 1))
    pool = {"pool_size": (3, 3), "padding": (1, 1, 1, 1)}
    y = g("exp", g("max_pool2d", y, **pool))
    return g.module(g("global_avg_pool2d", g("max_pool2d", y, **pool) if deep else y))


def exchanged(part):
    """Dtype and rows of what a rank exchanges, in order."""
    found = [op for op in part.main.body.ops if op.name == "graph.halo_exchange"]
    return [(op.operands[0].tensor.dtype, op.operands[0].tensor.shape[2]) for op in found]


def test_ranks_without_rows_agree_on_dtypes():
    module = network()
    parts = [distributed.rank_module(module, "space", 3, r, UNEVEN, "fp16") for r in range(3)]
    found = [exchanged(p) for p in parts]
    assert [rows for _, rows in found[1]] == [0, 0]
    assert [[d for d, _ in x] for x in found] == [["f16", "f32"]] * 3
    narrow = distributed.rank_module(module, "space", 1, 0, "", "fp16")
    inputs = [x.astype(np.float32) for x in inputs_of(module)]
    wanted = interpret_ranks([narrow], *inputs)[0]
    for got in interpret_ranks(parts, *inputs):
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=4e-3, atol=4e-3)


def test_sixteen_bits_on_threads():
    module = network(deep=False)
    inputs = [x.astype(np.float32) for x in inputs_of(module)]
    wanted = tw.interpret(module, *inputs, precision="fp64")
    told = {}

    def work(c):
        choices = {"target": "opencl", "precision": "fp16", "options": UNEVEN, "communicator": c}
        with distributed.compile(module, **choices) as exe:
            for got, want in zip(exe(*inputs), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)
            assert exe.report()["precision"] == "fp16"
            told[c.rank] = exe.distribution["agreed"]
            dtypes = [k.dtype for k in communications(exe.plan).values()]
        assert c.rank == 1 or "float16" in dtypes  # rank 1 has no rows to send

    ThreadWorld(3, timeout_s=60).run(work)
    assert told[0] == told[1] == told[2]
    assert told[0]["precision"] == "fp16"
    assert "mixed-precision" in told[0]["passes"]


def test_means_of_sixteen_bits_are_joined_in_float32():
    """Weighted by their rows, means of 30000 would be beyond the range of float16."""
    g = Graph()
    y = g("max_pool2d", g.input(1, 2, 8, 4, dtype="f16"), pool_size=(1, 1))
    module = g.module(g("global_avg_pool2d", y), g("mean", y, axis=(2,)))
    x = np.full((1, 2, 8, 4), 30000, np.float16)
    parts = [distributed.rank_module(module, "space", 2, r, "gather=late") for r in range(2)]
    for got in interpret_ranks(parts, x):
        assert [r.dtype for r in got] == [np.float16] * 2
        assert all((r == 30000).all() for r in got)


@pytest.mark.parametrize("mode", distributed.MODES)
def test_every_mode_divides_what_is_narrow(mode):
    text = str(mode_pipeline(mode, 2, 0, "", "bf16"))
    assert text.index("mixed-precision") < text.index("split-")
    assert "mixed-precision" not in str(mode_pipeline(mode, 2, 0))
    with pytest.raises(
        tw.InputError, match="expected a precision among fp32, fp32-strict, tf32, fp16, bf16, got 'fp8'"
    ):
        mode_pipeline(mode, 2, 0, "", "fp8")
