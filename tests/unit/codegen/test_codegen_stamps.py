"""Instrumented kernels: every block stamps its arrival, start, end and processor; results stay the same."""

import re
from itertools import pairwise

import numpy as np
import pytest
from codegen_samples import kernel, plan_of
from test_codegen_kernels import matrices, tiled

from tilewright.codegen import EmulatorBuilder, emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.codegen.emit.stamps import (
    ARRIVAL,
    DATA,
    END,
    LOOP,
    PROCESSOR,
    STAMPS_PER_BLOCK,
    STAMPS_WITH_PHASES,
    START,
)
from tilewright.runtime.emulator.device import EmulatorDevice


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_instrumented_kernels_compile(arch):
    plain, stamped = emit_cuda(tiled()), emit_cuda(tiled(), stamps=True)
    (before,) = compile_cuda(plain.source, arch=arch).kernels.values()
    (after,) = compile_cuda(stamped.source, arch=arch).kernels.values()
    assert after.spill_bytes == before.spill_bytes == 0
    assert after.static_shared_bytes == before.static_shared_bytes


def test_the_stamp_buffer_is_the_last_parameter_and_is_written():
    plain, stamped = emit_cuda(tiled()), emit_cuda(tiled(), stamps=True)
    *before, stamps = stamped.params
    assert tuple(before) == plain.params
    assert (stamps.dtype, stamps.shape, stamps.written) == ("u64", (4, STAMPS_PER_BLOCK), True)
    assert stamped.writes == (*plain.writes, len(plain.params))
    assert (stamped.grid, stamped.block) == (plain.grid, plain.block)
    assert "globaltimer" not in plain.source


def test_a_parameter_called_stamps_keeps_its_name():
    body = "%v = thread.load(%stamps, at = [tid]) : f32 thread.store(%v, %y, at = [tid])"
    source = emit_cuda(kernel(body, {"stamps": "f32[32]", "y": "f32[32]"}), stamps=True)
    assert [p.name for p in source.params] == ["stamps", "y", "stamps_2"]


def test_a_kernel_that_waits_starts_after_its_wait():
    body = """thread.wait_for_launches() thread.release_dependents()
      %v = thread.load(%x, at = [tid]) : f32 thread.store(%v, %y, at = [tid])"""
    source = emit_cuda(kernel(body, {"x": "f32[32]", "y": "f32[32]"}), stamps=True).source
    texts = [f"+ {column}] = tw_nano" for column in (ARRIVAL, START, END)]
    calls = [" tw_wait_for_launches();", " tw_release_dependents();"]
    places = [source.index(t) for t in (texts[0], calls[0], texts[1], calls[1], texts[2])]
    assert places == sorted(places)
    assert source.count("tw_nanoseconds();") == 3
    compile_cuda(source, arch="sm_90a")


def test_kernels_end_at_their_closing_brace():
    # An early return would leave a block's end unstamped.
    body = re.search(r"__global__.*", emit_cuda(tiled(), stamps=True).source, re.DOTALL)
    assert body is not None
    assert not re.search(r"\breturn\b", body[0])


@pytest.mark.emulator
@pytest.mark.parametrize("seed", [0, 3])
def test_every_block_is_stamped_and_results_stay(seed):
    a, b = matrices()
    source = emit_cuda(tiled(), stamps=True)
    plan = plan_of(source)
    with EmulatorDevice(EmulatorBuilder(), seed=seed).load(plan, {}) as loaded:
        c, stamps = loaded.run([a, b])
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)
    assert stamps.dtype == np.uint64
    assert (stamps[:, ARRIVAL] <= stamps[:, START]).all()
    assert (stamps[:, START] < stamps[:, END]).all()
    assert (stamps[:, PROCESSOR] == 0).all()
    # The emulator runs one block after the other, x fastest: so do the rows.
    assert (stamps[:-1, END] <= stamps[1:, ARRIVAL]).all()
    assert int(stamps[:, END].max() - stamps[:, ARRIVAL].min()) < 60 * 10**9


def test_phases_are_stamped_behind_the_first_barrier_after_a_read_and_behind_the_loop_around_it():
    source = emit_cuda(tiled(), phases=True).source
    texts = [f"+ {column}] = tw_nano" for column in (ARRIVAL, START, DATA, LOOP, END)]
    places = [source.index(t) for t in texts]
    assert places == sorted(places)
    assert source.index("__syncthreads();") < places[2]
    assert all(source.count(t) == 1 for t in texts)
    compile_cuda(source, arch="sm_90a")


def test_a_kernel_whose_threads_keep_to_themselves_has_no_phases():
    body = "%v = thread.load(%x, at = [tid]) : f32 thread.store(%v, %y, at = [tid])"
    source = emit_cuda(kernel(body, {"x": "f32[32]", "y": "f32[32]"}), phases=True).source
    assert source.count("tw_nanoseconds();") == 3
    assert f"+ {DATA}] = 0;" in source
    assert f"+ {LOOP}] = 0;" in source


@pytest.mark.emulator
def test_phases_follow_one_another_and_results_stay():
    a, b = matrices()
    plan = plan_of(emit_cuda(tiled(), phases=True))
    with EmulatorDevice(EmulatorBuilder(), seed=1).load(plan, {}) as loaded:
        c, stamps = loaded.run([a, b])
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)
    assert stamps.shape[1] == STAMPS_WITH_PHASES
    for before, after in pairwise((START, DATA, LOOP, END)):
        assert (stamps[:, before] <= stamps[:, after]).all()
