"""split-space on devices with little memory: what ranks take, cuts that fit, the least that would do."""

import re

import pytest
from distributed_networks import Graph, check, cnn

from tilewright.ir.errors import InputError
from tilewright.passes.graph.distribute.space.limits import rank_bytes
from tilewright.passes.graph.distribute.space.options import SpaceOptions, decide
from tilewright.passes.graph.distribute.split_space import split_modules, split_space


def chain(rows=16):
    """Two convolutions without biases: weights of 144 and 288 bytes, images of 64 bytes a row."""
    g = Graph()
    x = g.input(1, 1, rows, 16)
    y = g("conv2d", x, g.weight(4, 1, 3, 3), padding=(1, 1, 1, 1))
    return g.module(g("conv2d", y, g.weight(2, 4, 3, 3), padding=(1, 1, 1, 1)))


def used(module, devices, **options):
    return rank_bytes(module.main, decide(module, devices, SpaceOptions(**options)), devices)


def alive(module):
    """Bytes of a rank's constants and of the values that are alive at its fullest op."""
    ops = module.main.body.ops
    constants = {r for op in ops if op.name == "graph.constant" for r in op.results}
    last = {v: at for at, op in enumerate(ops) for v in op.operands}
    params, fullest = sum(p.tensor.nbytes for p in module.main.params), 0
    for at in range(len(ops)):
        live = {
            v
            for i, op in enumerate(ops[: at + 1])
            for v in op.results
            if last.get(v, i) >= at and v not in constants
        }
        fullest = max(fullest, sum(v.tensor.nbytes for v in live))
    return params + fullest + sum(a.nbytes for a in module.constants.values())


def test_bytes_of_a_chain_by_hand():
    """The input, weights, and: 8 rows of 4 channels, one row of the neighbour, 8 rows of 2 channels; or the
    end, 8 rows of 2 channels and all 16 of them."""
    assert used(chain(), 2, gather="late") == (1024 + 432 + 9 * 256 + 8 * 128,) * 2
    assert used(chain(), 1, gather="late") == (1024 + 432 + 16 * 256 + 16 * 128,)
    wide = chain(rows=64)
    assert used(wide, 4, gather="late")[0] == 4096 + 432 + max(17 * 256 + 16 * 128, 16 * 128 + 64 * 128)


@pytest.mark.parametrize("options", [{}, {"axis": "w"}, {"axis": "batch"}, {"axis": "channels"}])
def test_bytes_against_the_ranks_modules(options):
    """Modules have views of their inputs, and halos joined to copies of rows; but no sums beside operands."""
    module = cnn()
    modules = split_modules(module, 2, SpaceOptions(gather="late", **options))
    for told, m in zip(used(module, 2, gather="late", **options), modules, strict=True):
        assert 0.85 * told <= alive(m) <= 1.5 * told


def test_rows_move_to_devices_with_more_memory():
    module = chain(rows=64)
    even = used(module, 2, gather="late")[0]
    limits = f"{1.4 * even:.0f},{0.9 * even:.0f}"
    found = decide(module, 2, SpaceOptions(gather="late", memory=limits))
    assert all(
        b <= float(m) for b, m in zip(rank_bytes(module.main, found, 2), limits.split(","), strict=True)
    )
    rows = [p.split.extents for p in found.placements.values() if p.split is not None]
    assert all(first > second for first, second in rows)
    check(module, split_space, 2, gather="late", memory=limits)


def test_what_fits_stays_as_it_is():
    module = cnn()
    free = decide(module, 3, SpaceOptions(method="exact"))
    limited = decide(module, 3, SpaceOptions(method="exact", memory="1e9"))
    assert limited.total_s == free.total_s
    assert list(limited.placements.values()) == list(free.placements.values())


def test_memory_decides_against_what_is_faster():
    """Going on whole is faster here, and takes more memory than a device has."""
    module = chain(rows=64)
    fast, late = used(module, 4)[0], used(module, 4, gather="late")[0]
    assert late < fast
    assert used(module, 4, memory=f"{fast - 1:.0f}")[0] <= fast - 1


def test_the_least_that_would_do():
    module = chain(rows=64)
    with pytest.raises(
        InputError, match=r"expected memory for the weights and values of 2 devices, at least"
    ) as e:
        decide(module, 2, SpaceOptions(memory="6000,3000"))
    least = [float(n) for n in re.findall(r"\d{4,}", str(e.value))[:2]]
    assert "got 6000, 3000" in str(e.value)
    assert least[0] == pytest.approx(2 * least[1], abs=2)
    decide(module, 2, SpaceOptions(memory=",".join(map(str, least))))
    with pytest.raises(InputError, match="at least"):
        decide(module, 2, SpaceOptions(memory=",".join(str(0.95 * n) for n in least)))


@pytest.mark.parametrize("memory", ["1,2,3", "0", "much", "-1"])
def test_bad_memories(memory):
    with pytest.raises(InputError, match="option 'memory' expects"):
        decide(chain(), 2, SpaceOptions(memory=memory))
