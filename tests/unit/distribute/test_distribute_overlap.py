"""split-space with communication beside compute: parts of rows, what decides for them, and equal results."""

from dataclasses import replace

import numpy as np
import pytest
from distributed_networks import Graph, check, communications, names_of

from tilewright.costmodel import load_hardware
from tilewright.costmodel.op_work import Rates
from tilewright.costmodel.partition.naive import split_extent
from tilewright.distributed.compilation import with_common_wave
from tilewright.ir.errors import InputError
from tilewright.ir.windows import input_interval
from tilewright.passes.graph.distribute.rows.overlap import Parts, parts_of
from tilewright.passes.graph.distribute.space.options import SpaceOptions, decide, device_wave
from tilewright.passes.graph.distribute.split_space import split_modules, split_space


def chain(rows=26, layers=2):
    """Convolutions with batch norm and relu, a strided one last."""
    g = Graph()
    y = g.input(2, 3, rows, 6)
    for _ in range(layers):
        y = g.conv(y, 4, 3)
    return g.module(g.conv(y, 4, 5, stride=2))


def window(name, weight=(), **attrs):
    """A convolution, then a windowed op on its rows."""
    g = Graph()
    y = g.conv(g.input(2, 4, 29, 7), 4, 3)
    return g.module(g(name, y, *([g.weight(*weight)] if weight else []), **attrs))


WINDOWS = {
    "conv": ("conv2d", (5, 4, 3, 3), {"padding": (1, 1, 1, 1)}),
    "conv-strided": ("conv2d", (5, 4, 5, 3), {"strides": (2, 3), "padding": (1, 0, 3, 2)}),
    "conv-dilated": ("conv2d", (5, 4, 3, 3), {"dilation": (2, 2), "padding": (2, 1, 2, 3)}),
    "conv-groups": ("conv2d", (6, 2, 4, 4), {"groups": 2, "padding": (1, 1, 1, 1)}),
    "transposed": (
        "conv2d_transpose",
        (4, 5, 4, 4),
        {"strides": (2, 2), "padding": (1, 1, 1, 1), "kernel_layout": "IOHW"},
    ),
    "max-ceil": ("max_pool2d", (), {"pool_size": (3, 3), "strides": (2, 2), "ceil_mode": True}),
    "avg": (
        "avg_pool2d",
        (),
        {"pool_size": (3, 3), "padding": (1, 1, 1, 1), "count_include_pad": True},
    ),
}


def parts_in(module):
    """The joins of parts in a rank's module: how many parts each has."""
    return [len(op.operands) for op in module.main.body.ops if op.name == "graph.concatenate"]


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("devices", [2, 3])
def test_windows_in_parts(name, devices):
    op, weight, attrs = WINDOWS[name]
    module = window(op, weight, **attrs)
    found = {o: check(module, split_space, devices, overlap=o, gather="late") for o in ("never", "always")}
    assert [parts_in(m) for m in found["never"]] == [[]] * devices
    assert any(parts_in(m) for m in found["always"])
    for before, after in zip(found["never"], found["always"], strict=True):
        assert communications(before) == communications(after)


@pytest.mark.parametrize(
    "options", [{"speeds": "1,3,2"}, {"axis": "w"}, {"method": "exact"}, {"axis": "batch"}]
)
def test_other_options_with_parts(options):
    check(chain(), split_space, 3, overlap="always", gather="late", **options)


def test_the_exchange_stands_before_the_part_that_does_not_wait():
    """Rank 1 of 3: the exchange, the inner rows of what is exchanged, borders on both sides, their join."""
    module = split_modules(chain(), 3, SpaceOptions(overlap="always", gather="late"))[1]
    ops = [op for op in module.main.body.ops if op.name != "graph.constant"]
    at = next(i for i, op in enumerate(ops) if op.name == "graph.halo_exchange")
    exchange, inner = ops[at : at + 2]
    assert inner.name == "graph.conv2d"
    assert inner.operands[0] is exchange.operands[0]
    crops, borders = ops[at + 2 : at + 6 : 2], ops[at + 3 : at + 6 : 2]
    assert [c.operands[0] for c in crops] == [exchange.result] * 2
    assert [b.operands[0] for b in borders] == [c.result for c in crops]
    assert ops[at + 6].operands == (borders[0].result, inner.result, borders[1].result)


def test_blocks_wait_at_their_entry_only():
    """Where halos inside blocks are computed twice, their first layers alone are made in parts."""
    options = {"method": "exact", "gather": "late", "latency_us": 50.0, "tflops": 1e-2, "wave": 1.0}
    module = chain(rows=64, layers=5)
    modules = check(module, split_space, 2, overlap="always", **options)
    exchanges = names_of(modules[0]).count("halo_exchange")
    assert 0 < exchanges < 5
    assert len(parts_in(modules[0])) == exchanges


def test_parts_against_all_rows():
    """The interior is every row whose window lies in the own rows, and no other."""
    rng = np.random.default_rng(0)
    tried = 0
    for _ in range(60):
        kernel, stride, dilation = rng.integers(1, 5), rng.integers(1, 3), rng.integers(1, 3)
        pad = int(rng.integers(0, kernel))
        g = Graph()
        x = g.input(1, 1, 40, 1)
        attrs = {"strides": (int(stride), 1), "dilation": (int(dilation), 1), "padding": (pad, 0, pad, 0)}
        op = g("conv2d", x, g.weight(1, 1, int(kernel), 1), **attrs)
        conv, extent = g.b.ops[-1], op.tensor.shape[2]
        for own, rows in zip(split_extent(40, 3), split_extent(extent, 3), strict=True):
            reads = [input_interval((i, i + 1), 40, kernel, stride, dilation, pad) for i in range(*rows)]
            inside = [
                i for i, r in zip(range(*rows), reads, strict=True) if own[0] <= r.start and r.end <= own[1]
            ]
            found = parts_of(conv, 2, rows, own)
            if found is None:
                assert not inside or len(inside) == rows[1] - rows[0]
            else:
                tried += 1
                assert found.rows[found.interior] == (inside[0], inside[-1] + 1)
                assert [i for p in found.rows for i in range(*p)] == list(range(*rows))
    assert tried > 50


def test_auto_weighs_what_is_hidden_against_more_kernels():
    """A wide image hides its halo behind the rest; kernels that cost much, or a fast link, leave it alone."""
    module = chain(rows=400)
    slow = {"gather": "late", "link_gbs": 1e-3, "tflops": 1e-4, "wave": 1}

    def parts(**options):
        return decide(module, 2, SpaceOptions(**{**slow, **options})).parts

    assert len(parts()) == 2
    assert not parts(kernel_us=1e9)
    assert not parts(link_gbs=1e3, latency_us=0)
    assert not parts(wave=1e9)
    assert not parts(overlap="never")
    assert len(parts(overlap="always", kernel_us=1e9)) == 2


def test_small_kernels_take_as_long_as_a_wave():
    g = Graph()
    x = g.input(1, 1, 64, 64)
    g("relu", x)
    rates, op = Rates(wave=1024), g.b.ops[-1]
    assert rates.rows_s(op, 2, 32) == pytest.approx(rates.compute_s(op) / 2)
    assert rates.rows_s(op, 2, 1) == pytest.approx(rates.compute_s(op) / 4)
    assert Parts(((0, 1), (1, 5), (5, 6)), 1).borders == ((0, 1), (5, 6))


def test_unknown_policies():
    with pytest.raises(InputError, match="option 'overlap' expects one of auto, always, never, got 'maybe'"):
        decide(chain(), 2, SpaceOptions(overlap="maybe"))
    with pytest.raises(InputError, match=r"-1\.0 us per kernel"):
        decide(chain(), 2, SpaceOptions(kernel_us=-1.0))
    assert names_of(split_modules(chain(), 1, SpaceOptions(overlap="always"))[0]) == ["all_gather"]


def test_ranks_agree_on_the_wave_of_the_largest_gpu():
    class Ranks:
        def gather_texts(self, text, *, doing):
            return [text, "108"]

    gpu, cpu = load_hardware("cuda:sm_90a"), load_hardware("opencl")
    assert with_common_wave("axis=w", gpu, Ranks()) == f"axis=w, wave={gpu.sm_count * 128.0 * 128.0}"
    assert with_common_wave("", replace(gpu, sm_count=8), Ranks()) == f"wave={108 * 128.0 * 128.0}"
    assert with_common_wave("axis=w", cpu, Ranks()) == "axis=w"
    assert with_common_wave("wave=5, axis=w", gpu, Ranks()) == "wave=5, axis=w"


def test_the_wave_is_that_of_the_device():
    gpu = load_hardware("cuda:sm_90a")
    assert device_wave(replace(gpu, sm_count=8)) == 8 * 128 * 128
    assert device_wave(None) == device_wave(load_hardware("opencl")) == Rates().wave
