"""Weights that a network finds in DRAM are timed there: copies in turns, prefetches, own keys and bounds."""

from dataclasses import replace

import numpy as np
import pytest
from search_samples import TARGET, dense_kernel

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.measuring import repeated_plan
from tilewright.measuring.kernel_program import kernel_program
from tilewright.measuring.measurer import Measurer
from tilewright.measuring.network_replays import network_plan, with_kernels
from tilewright.measuring.repeated_plan import MOST_RUNS, RUNS, SPREAD, copies_for, repeated, streamed_bytes
from tilewright.passes.analysis.work.weight_traffic import weights_leave_l2
from tilewright.passes.kernels.contract.choice import contract_points
from tilewright.passes.kernels.kernel_problem import contract_problem
from tilewright.runtime.null.device import NullDevice
from tilewright.tuning.database.database import TuningDatabase
from tilewright.tuning.kernels.search_space import search_space

L2 = TARGET.hardware.l2_bytes


@pytest.fixture(scope="module")
def kernel():
    """A product on the lanes, which prefetches weights that are in DRAM."""
    return dense_kernel(16, 512, 1024, precision="fp32-strict")


@pytest.fixture
def measurer(tmp_path):
    with TuningDatabase(tmp_path / "t.sqlite") as db:
        yield Measurer(TARGET, NullDevice(), db)


def dense_network(columns, depth):
    """A dense layer with constant weights at graph level."""
    module = tw.parse(
        f"module @m {{ graph.func @main(%x: f32[16, {depth}]) -> f32[16, {columns}] {{"
        f' %w = graph.constant(name = "w") : f32[{columns}, {depth}]'
        f" %0 = graph.dense(%x, %w) : f32[16, {columns}] graph.return(%0) }} }}"
    )
    data = np.zeros((columns, depth), np.float32)
    return module.with_constants(tw.ir.Constants({"w": data}))


@pytest.mark.parametrize(
    ("nbytes", "copies"),
    [
        (2 * L2, 1),
        (L2, 2),
        (L2 // 10, 15),
        (L2 // 1000, 1),
        (0, 1),
        (int(SPREAD * L2 / MOST_RUNS), MOST_RUNS),
    ],
)
def test_copies_exceed_the_l2_where_that_takes_few_runs(nbytes, copies):
    assert copies_for(nbytes, TARGET.hardware) in (copies, copies + 1)
    assert copies_for(nbytes, resolve_target("opencl").hardware) == 1


def test_every_copy_has_its_turn_and_bytes_of_its_own(measurer, kernel):
    measurer.cold_weights = True
    program = measurer.program(kernel_program(kernel, (1,)))
    weights = 512 * 1024 * 4
    assert program.copies == copies_for(weights, TARGET.hardware) > RUNS
    plan, pools, runs = repeated(program.plan, program.copies, TARGET.hardware)
    assert runs == len(plan.launches) == program.copies
    (pool,) = pools.values()
    assert pool.nbytes <= 3.1 * L2
    assert np.isfinite(pool).all()
    places = {plan.locate(x.args[1]) for x in plan.launches}
    assert len({offset for _, offset in places}) == program.copies
    assert program.copies * weights >= SPREAD * L2
    assert all(owner.kind == "constant" and owner.nbytes == pool.nbytes for owner, _ in places)
    assert len({x.args[0] for x in plan.launches}) == 1  # activations stay where they are
    assert plan.launches[5].deps == (4,)
    again = repeated(
        measurer.program(kernel_program(dense_kernel(16, 256, 2048), (1,))).plan, 30, TARGET.hardware
    )[1]
    assert next(iter(again.values())) is pool


def test_warm_programs_are_what_they_were(measurer, kernel):
    program = measurer.program(kernel_program(kernel, (1,)))
    plan, pools, runs = repeated(program.plan, program.copies, TARGET.hardware)
    assert (program.copies, pools, runs) == (1, {}, RUNS)
    assert len({x.args for x in plan.launches}) == 1


def test_keys_tell_cold_from_warm_and_cold_kernels_prefetch(measurer, kernel):
    programs = []
    for cold in (False, True):
        measurer.cold_weights = cold
        programs.append(measurer.program(kernel_program(kernel, (1,))))
    warm, cold = programs
    assert warm.key != cold.key
    assert ["prefetch" in p.plan.kernels[0].source for p in programs] == [False, True]
    assert measurer.key("kernel:x") != measurer.key("x")
    assert "cold" in measurer.key("kernel:x").program
    assert measurer.key("x").program == "x"


def test_the_rule_is_that_of_the_network(measurer):
    for module, cold in ((dense_network(512, 512), False), (dense_network(8192, 1024), True)):
        assert weights_leave_l2(module, TARGET.hardware) == cold
        measurer.network(module)
        assert measurer.cold_weights == cold
        tensor = []
        lower(module, TARGET, precision="fp32-strict", choose=lambda m, found=tensor: found.append(m) or m)
        assert weights_leave_l2(tensor[0], TARGET.hardware) == cold
        assert not weights_leave_l2(module, resolve_target("opencl").hardware)
        plan = network_plan(tensor[0], TARGET)
        assert plan.cold_weights == cold
        assert ("prefetch" in plan.plan.kernels[0].source) == cold
        (kernel,) = (f for f in tensor[0].funcs if f.name != "main")
        swapped = with_kernels(plan, tensor[0], {kernel.name: kernel}, TARGET)
        assert swapped.plan.kernels[0].source == plan.plan.kernels[0].source


def test_a_cold_measurement_is_the_time_of_one_run(measurer, kernel, monkeypatch):
    measurer.cold_weights = True
    program = measurer.program(kernel_program(kernel, (1,)))
    monkeypatch.setattr(repeated_plan, "pool_of", lambda dtype, nbytes: np.zeros(nbytes // 4, np.float32))
    loads = []

    class Timed(NullDevice):
        def load(self, plan, constants, *, progress=None):
            loaded = super().load(plan, constants, progress=progress)
            loaded.time = lambda inputs, repeats: [1e-6 * len(plan.launches)] * repeats
            loads.append(loaded)
            return loaded

    measurer.device = Timed()
    for _ in range(2):
        assert measurer.measure(program, program.plan) == pytest.approx(1e-6)
    assert [x._closed for x in loads] == [True, False]  # the next one finds the copies on the device
    measurer.close()
    measurer.close()
    assert loads[1]._closed
    assert measurer.known(program) == pytest.approx(1e-6)


def test_the_bound_counts_what_surely_comes_from_dram(kernel):
    weights = 512 * 1024 * 4
    streamed = streamed_bytes(weights, weights, TARGET.hardware)
    assert 0.2 * weights < streamed < 0.4 * weights  # of 1.5 times the L2, the L2 may be there
    assert streamed_bytes(100, 100, TARGET.hardware) == 0.0
    warm, cold = search_space(kernel, TARGET.hardware), search_space(kernel, TARGET.hardware, (1,))
    assert len(warm) == len(cold)
    assert (cold.least_s >= warm.least_s).all()
    assert (search_space(kernel, TARGET.hardware, (0,)).least_s == warm.least_s).all()


def test_streamed_bytes_lie_between_warm_and_cold():
    large = dense_kernel(64, 4096, 4096)
    problem = contract_problem(large, next(o for o in large.body.ops if o.name == "tensor.contract"))
    hardware = replace(TARGET.hardware, l2_bytes=1 << 27)
    slow = replace(hardware, dram_bytes_per_s=1e9)  # nothing else sets the bound
    streamed = [0.0, problem.compulsory_bytes / 2, problem.compulsory_bytes]
    bounds = [contract_points(problem, slow, streamed_bytes=b).least_s for b in streamed]
    assert (bounds[0] < bounds[1]).all()
    assert bounds[1] == pytest.approx(problem.compulsory_bytes / 2 / 1e9)
    assert bounds[2] == pytest.approx(contract_points(problem, slow).cold.seconds)
