"""Layers of a network as searches see them, and plans made of what searches find."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.costmodel.op_work import Rates
from tilewright.ir.builder import Builder
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.ir.nodes import Func, Level, Module, Value
from tilewright.ir.types import TensorType
from tilewright.ir.windows import POINT, RowWindow
from tilewright.passes.graph.distribute.space.layers import chains, layers_of
from tilewright.passes.graph.distribute.space.options import SpaceOptions
from tilewright.passes.graph.distribute.space.plan import layer_ops, read_plan
from tilewright.passes.graph.distribute.space.search import directed_plan, searched_plan
from tilewright.passes.graph.distribute.split_space import split_modules


def network(*, shortcut=False):
    """7x7 stride 2, ceil pool, 1x1, 3x3 dilated, 3x3; with `shortcut` the last one's input is added to it."""
    x = Value(TensorType("f32", (1, 2, 32, 12)), "x")
    rng, arrays, b = np.random.default_rng(0), {}, Builder("test:net")

    def conv(y, filters, kernel, **attrs):
        shape = (filters, y.tensor.shape[1], kernel, kernel)
        name = f"w{len(arrays)}"
        arrays[name] = (rng.standard_normal(shape) / kernel).astype(np.float32)
        (w,) = b.emit("graph.constant", (), {"name": name}, types=[TensorType("f32", shape)])
        return b.value("graph.relu", b.value("graph.conv2d", y, w, **attrs))

    y = conv(x, 3, 7, strides=(2, 2), padding=(3, 3, 3, 3))
    y = b.value("graph.max_pool2d", y, pool_size=(3, 3), strides=(2, 2), ceil_mode=True)
    y = conv(conv(y, 4, 1), 4, 3, dilation=(2, 2), padding=(2, 2, 2, 2))
    z = conv(y, 4, 3, padding=(1, 1, 1, 1))
    z = b.value("graph.add", z, y) if shortcut else z
    b.emit("graph.return", (z,))
    func = Func(Level.GRAPH, "main", b.block((x,)), (z.type,))
    return Module("m", (func,), constants=tw.ir.Constants(arrays))


def test_layers_and_what_their_rows_cost():
    first, pool, point, dilated, last = layers_of(network().main, "h")
    assert first.rows.window == RowWindow(7, 2, 1, 3)
    assert (pool.rows.input_rows, pool.rows.output_rows, pool.inputs) == (16, 8, (0,))
    assert (dilated.rows.window, dilated.inputs) == (RowWindow(3, 1, 2, 2), (2,))
    assert point.rows.macs_per_row == 2 * 4 * 3 * 3 / 2 + 12 / 2  # and its relu
    assert last.rows.input_row_bytes == 48.0
    assert (last.leaves, dilated.leaves) == (True, False)


def test_chains_end_where_rows_are_read_elsewhere():
    numbers = [[x.number for x in run] for run in chains(layers_of(network().main, "h"))]
    assert numbers == [[0, 1, 2, 3, 4]]
    layers = layers_of(network(shortcut=True).main, "h")
    assert layers[3].leaves
    assert [[x.number for x in run] for run in chains(layers)] == [[0, 1, 2, 3], [4]]
    assert all(x.rows.window == POINT for x in layers_of(network().main, "batch"))
    assert layers_of(network().main, "channels") == ()


def ranks_give_the_same(module, devices, **options):
    x = np.random.default_rng(2).standard_normal(module.input_types[0].shape)
    (wanted,) = tw.interpret(module, x, precision="fp64")
    modules = split_modules(module, devices, SpaceOptions(gather="late", **options))
    for (got,) in interpret_ranks(modules, x, precision="fp64"):
        np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-11)
    return sum(op.name == "graph.halo_exchange" for op in modules[0].main.body.ops)


@pytest.mark.parametrize("method", ["exact", "layers", "pruned", "directions"])
@pytest.mark.parametrize("shortcut", [False, True])
def test_searched_plans_give_the_same(method, shortcut):
    module = network(shortcut=shortcut)
    ranks_give_the_same(module, 2, method=method, axis="w", threshold=40.0)
    ranks_give_the_same(module, 3, method=method, speeds="1,3,2", threshold=40.0)


def test_latency_fuses_and_slow_devices_exchange():
    module = network()
    fused = ranks_give_the_same(module, 2, method="exact", latency_us=1e3)
    apart = ranks_give_the_same(module, 2, method="exact", latency_us=0.0, tflops=1e-6)
    assert (fused, apart) == (1, 3)


def show_plan(func, plan):
    """The text of a plan, which `read_plan` reads back."""
    parts = []
    for number, op in enumerate(layer_ops(func)):
        planned = plan.get(op)
        if planned is None:
            continue
        rows = ",".join(f"{s}-{e}" for s, e in planned.intervals)
        suffix = f"+{planned.kept}" if planned.kept else ""
        parts.append(f"{number}:{planned.direction or 'whole'}{suffix}" + (f"={rows}" if rows else ""))
    return "; ".join(parts)


def test_a_plan_reads_back():
    main = network().main
    found = searched_plan(main, "h", (1.0, 0.5), "exact", 5.0, Rates())
    text = show_plan(main, found)
    assert text.startswith("0:h=0-")
    assert read_plan(main, text) == found
    other = "1:whole; 2:inner+h=0-1,1-3; 3:channels; 4:inner"
    assert show_plan(main, read_plan(main, other)) == other


def test_plans_cut_what_layers_sum_over():
    module = network()
    for kept in ("", "+h", "+w", "+channels", "+batch"):
        ranks_give_the_same(module, 2, plan=f"0:h; 2:inner{kept}; 3:channels; 4:inner{kept}=0-1,1-4")


def test_a_search_chooses_other_directions_for_other_layers():
    main = network().main
    cheap = directed_plan(main, (1.0,) * 3, Rates(flops_per_s=1e6, link_latency_s=0.0))
    assert len(cheap) == 5
    assert None not in {p.direction for p in cheap.values()}
    dear = directed_plan(main, (1.0,) * 3, Rates(link_latency_s=1e3))
    assert {p.direction for p in dear.values()} == {None}
