"""Processes that lower kernels give the plans that this one makes, tell of refusals, and end."""

import os

import pytest
from decision_samples import parameters, with_template
from search_samples import TARGET, dense_kernel

from tilewright.ir import WorkError
from tilewright.measuring.budget import Budget
from tilewright.measuring.kernel_program import kernel_program
from tilewright.measuring.measurer import Measurer, lowered
from tilewright.runtime.null.device import NullDevice
from tilewright.tuning.database.database import TuningDatabase
from tilewright.tuning.kernels.kernel_search import KernelSearch
from tilewright.tuning.kernels.lowering_pool import LoweringJob, LoweringPool, NotLowered
from tilewright.tuning.kernels.search import Task, run_searches
from tilewright.tuning.kernels.search_space import search_space
from tilewright.tuning.tuner import LEAST_PATIENCE, PATIENCE, patience_for


class ByBlock(Measurer):
    """Compiles nothing; times by the size of the block."""

    def build(self, programs):
        return [p.plan for p in programs]

    def _times(self, program, built):
        assert self._constants(program, built)
        return [1e-6 * built.launches[0].block] * 3


@pytest.fixture(scope="module")
def kernel():
    return dense_kernel(64, 256, 128)


@pytest.fixture(scope="module")
def pool():
    with LoweringPool(TARGET, 2) as started:
        yield started


def test_plans_are_those_of_this_process(kernel, pool):
    space = search_space(kernel, TARGET.hardware)
    jobs = [LoweringJob(space.variant(i), (1,), cold) for i in (0, 3, 9) for cold in (False, True)]
    plans = pool.plans(jobs)
    for job, plan in zip(jobs, plans, strict=True):
        assert plan == lowered(kernel_program(job.kernel, (1,)), TARGET, cold=job.cold)[1]
    assert len({p.kernels[0].source for p in plans}) >= 3


def test_what_is_refused_is_told(kernel, pool):
    bad = with_template(kernel, "no such thing", parameters(kernel))
    refused, fine = pool.plans([LoweringJob(bad, (), False), LoweringJob(kernel, (), False)])
    assert isinstance(refused, NotLowered)
    assert "no such thing" in refused.text
    assert fine.launches


def test_a_dead_process_is_an_error_and_all_end(kernel):
    pool = LoweringPool(TARGET, 1)
    with pool:
        process = pool._free.get()
        process.kill()
        process.wait()
        pool._free.put(process)
        with pytest.raises(WorkError, match="has died"):
            pool.plans([LoweringJob(kernel, (), False)])
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_search_is_the_same_with_it(kernel, pool, tmp_path):
    found = []
    for lowering in (None, pool.plans):
        with TuningDatabase(tmp_path / f"{lowering is None}.sqlite") as db:
            measurer = ByBlock(TARGET, NullDevice(), db)
            search = KernelSearch(search_space(kernel, TARGET.hardware), patience=8)
            task = Task("k", "kernel:k", search, lambda f: kernel_program(f, (1,)), constants=(1,))
            run_searches([task], measurer, Budget(), progress=False, lowering=lowering)
            found.append((task.outcome, measurer.measured))
    assert found[0] == found[1]
    assert found[0][1] > 8


def test_patience_is_for_kernels_that_take_time():
    assert patience_for(0.5) == patience_for(0.05) == PATIENCE
    assert patience_for(0.0) == round(LEAST_PATIENCE * PATIENCE)
    assert patience_for(0.0) < patience_for(0.03) < PATIENCE
