"""Every template with the model's and with forced parameters, against the reference interpreter."""

from dataclasses import replace

import pytest
from template_kernels import CASES, check, prepared

from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Pairs
from tilewright.passes.framework.invariants import find_invariant

IDS = [c.name for c in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_on_opencl(case):
    assert check(case, "opencl") < 1e-6


@pytest.mark.emulator
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_cuda_text_in_the_emulator(case):
    assert check(case, "emulator") < 1e-6


@pytest.mark.parametrize("case", [c for c in CASES if c.name != "contract-direct"], ids=lambda c: c.name)
def test_cuda_text_compiles_without_spills(case):
    lowered = lower(prepared(case, "cuda:sm_90a"), resolve_target("cuda:sm_90a"))
    for name, source in lowered.sources.items():
        (resources,) = compile_cuda(source.source, arch="sm_90a").kernels.values()
        assert resources.spill_bytes == 0, name


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_text_is_deterministic_and_barriers_suffice(case):
    target = resolve_target("cuda:sm_90a")
    first, second = (lower(prepared(case, "cuda:sm_90a"), target) for _ in range(2))
    assert {n: s.source for n, s in first.sources.items()} == {n: s.source for n, s in second.sources.items()}
    assert find_invariant("barriers-placed")(first.thread) == []


@pytest.mark.parametrize("name", ["contract-prefetch", "contract-samples"])
def test_a_prefetching_loop_has_two_barriers(name):
    """Also where threads of any number, here 18, copy a box together."""
    case = next(c for c in CASES if c.name == name)
    lowered = lower(prepared(case, "cuda:sm_90a"), resolve_target("cuda:sm_90a"))
    (source,) = (s.source for n, s in lowered.sources.items() if "contract" in n)
    assert source.count("__syncthreads()") == 3  # one before the loop, two inside


def test_samples_of_a_block_lie_together():
    case = next(c for c in CASES if c.name == "contract-samples")
    lowered = lower(prepared(case, "cuda:sm_90a"), resolve_target("cuda:sm_90a"))
    (source,) = (s.source for n, s in lowered.sources.items() if "contract" in n)
    assert "a_tile[4][6][4]" in source  # channels, samples, pixels: a step's rows in neighbouring banks


def test_tiles_that_are_cut_store_vectors_all_of_which_lie_inside():
    case = next(c for c in CASES if c.name == "matmul-cut-columns")
    lowered = lower(prepared(case, "cuda:sm_90a"), resolve_target("cuda:sm_90a"))
    (source,) = (s.source for n, s in lowered.sources.items() if "contract" in n or "matmul" in n)
    assert "*(float4*)&out[" in source


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block": Pairs.of({"n": 1, "k": 6, "y": 4, "x": 8})}, "multiples of thread tiles"),
        ({"block": Pairs.of({"n": 1, "k": 4096, "y": 4, "x": 8})}, "at most 1024 threads"),
        ({"thread": Pairs.of({"n": 1, "k": 0, "y": 1, "x": 2})}, "at least 1"),
        ({"block": Pairs.of({"k": 8})}, "a tile for each of"),
        ({"step": Pairs.of({"c": 2})}, "divide"),
        ({"staging": "texture"}, "staging in parameters of contract-shared to be one of shared, direct"),
        ({"stages": 3}, "stages"),
        ({"pad": "wide"}, "pad"),
    ],
)
def test_impossible_parameters_are_named(change, words):
    case = next(c for c in CASES if c.name == "contract-shared")
    with pytest.raises(InputError, match=words):
        lower(prepared(replace(case, params={**case.params, **change}), "opencl"), resolve_target("opencl"))
