"""The lint of machine code: it finds fences, spills and serialised multiplications in loops that multiply."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.samples.sass import faults, machine_code, nvdisasm, parsed
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.kernel_builds import compiled
from tilewright.devices.targets import resolve_target
from tilewright.ir import WorkError
from tilewright.runtime.plan.execution_plan import KernelCode

needs_nvdisasm = pytest.mark.skipif(
    nvdisasm() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm"
)

#: a loop of multiplications of one warpgroup, which gives a slot back after each
LOOP = """
typedef unsigned long long Tile;
extern "C" __global__ void __launch_bounds__(128) k(float* out, Tile a, Tile b, int n) {
    __shared__ unsigned long long barrier;
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(&barrier);
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    #pragma unroll 1
    for (int i = 0; i < n; ++i) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 2; ++k)
            asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
                         "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(a + i), "l"(b + k));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        MORE
    }
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = c[i];
}
"""
ARRIVE = 'asm volatile("{mbarrier.arrive%s.b64 _, [%%0];}" ::"r"(at) : "memory");'


def lint(more: str) -> list[str]:
    binary = compile_cuda(LOOP.replace("MORE", more))
    with TemporaryDirectory() as folder:
        return faults(machine_code(binary, Path(folder)), binary.log, multiplications=2)


@needs_nvdisasm
def test_a_loop_that_gives_slots_back_in_the_default_form_is_clean():
    assert lint(ARRIVE % ".shared::cta") == []


@needs_nvdisasm
@pytest.mark.parametrize(
    ("more", "clause"),
    [
        (ARRIVE % ".release.cluster.shared::cluster", "MEMBAR.ALL.GPU"),
        ('asm volatile("fence.proxy.async;" ::: "memory");', "MEMBAR.ALL.GPU"),
        ("__threadfence();", "MEMBAR.SC.GPU"),
        ("c[1] += 1.0f; a += (Tile)c[2];", ""),
    ],
    ids=["release.cluster", "fence of all memory", "threadfence", "clean"],
)
def test_fences_of_the_device_are_found(more, clause):
    found = lint(more)
    assert any(clause in f for f in found) if clause else not found


@needs_nvdisasm
def test_another_number_of_multiplications_is_found():
    extra = LOOP[LOOP.index('asm volatile("wgmma.mma') : LOOP.index('asm volatile("wgmma.commit')]
    found = lint(extra.replace("b + k", "b + 7"))
    assert "a loop has 3 multiplications, planned are 2" in found


def test_sums_that_are_touched_between_multiplications_serialise_them():
    text = LOOP.replace("for (int k = 0; k < 2; ++k)", "for (int k = 0; k < 2; ++k, c[1] += 1.0f)")
    slow = text.replace("MORE", "")
    assert compile_cuda(slow).serialised
    assert not compile_cuda(LOOP.replace("MORE", "")).serialised
    codes, target = {"k": KernelCode("k", "k", "cuda", slow)}, resolve_target("cuda:sm_90a")
    with pytest.raises(WorkError, match=r"kernel 'k': its multiplications wait for one another: .C75"):
        compiled(codes, target)
    with pytest.warns(RuntimeWarning, match="its time is measured"):
        assert compiled(codes, target, timed={"k"})["k"].binary


def test_spills_count_in_the_innermost_loop_that_multiplies_alone():
    text = """
.L_x_0:
        /*0000*/                   LDL R1, [R2] ;
.L_x_1:
        /*0010*/                   HGMMA.64x8x16.F32 R24, gdesc[UR8], R24, gsb0 ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/               @P1 BRA `(.L_x_0) ;
        /*0040*/                   EXIT ;
"""
    assert faults(parsed(text), multiplications=1) == []
    assert faults(parsed(text.replace("@P0 BRA `(.L_x_1)", "@P0 STL [R2], R1")), multiplications=1) == [
        "a loop that multiplies has LDL R1, [R2]",
        "a loop that multiplies has @P0 STL [R2], R1",
    ]
