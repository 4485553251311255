"""Library kernels in plans: planned, stored, checked, and queued, with stand-ins for the library."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_samples import FakeCublasLt
from test_library_candidates import candidates, epilogue_kernel, whole

from tilewright.compilation.kernel_builds import emit_kernels, kernel_codes
from tilewright.compilation.planning import library_kernels, plan_module
from tilewright.devices.targets import resolve_target
from tilewright.ir import Level
from tilewright.libraries.program import inlined
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import PACKING, official_stages
from tilewright.running.executable import Artifact, Executable
from tilewright.running.loading import load
from tilewright.runtime.cuda.plan_libraries import PlanLibraries
from tilewright.runtime.errors import DeviceError, DeviceMissingError, InputError
from tilewright.runtime.libraries import cublaslt as api
from tilewright.runtime.libraries.cublaslt import CublasLt
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.matmul import MatmulProblem, Matrix
from tilewright.runtime.null.device import NullDevice
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.container import SOURCE_SUFFIX
from tilewright.runtime.plan.execution_plan import LANGUAGES, ExecutionPlan
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json
from tilewright.runtime.shared_memory import Shared

PROBLEM = MatmulProblem(
    4, 6, 8, 2, "float32", "float32", False, True, Matrix(4, 32), Matrix(6, 48), Matrix(4, 24)
)


def kernel(**changes: Any) -> LibraryKernel:
    given = {"provider": "cublaslt", "version": "13.1.0", "problem": PROBLEM, "algorithm": "00" * 64}
    return LibraryKernel(**{**given, "workspace_bytes": 512, **changes})


def planned() -> ExecutionPlan:
    """A plan with one library launch (bias, workspace) and one of a generated kernel behind it."""
    original = epilogue_kernel("q", 12)
    found = [(m, k.problem) for m in candidates(original) for k in library_kernels(m).values()]
    program = [m for m, p in found if p.epilogue == "bias" and p.c is None][1]  # the second algorithm
    module = inlined(whole(original), {"k": program})
    target = resolve_target("cuda:sm_90a")
    stages = official_stages(Level.TENSOR, "cuda").since(PACKING).without("prefetch-weights")
    lowered = run_pipeline(module, stages.whole, PassContext(target=str(target), verify_each=True))
    sources = emit_kernels(lowered, target)
    return plan_module(lowered, sources, kernel_codes(sources, target), str(target))


def test_structures_have_the_sizes_of_the_c_interface() -> None:
    assert ctypes.sizeof(api.Algorithm) == api.ALGORITHM_BYTES
    assert ctypes.sizeof(api.HeuristicResult) == 96
    assert api.HeuristicResult.workspace_bytes.offset == 64
    assert api.HeuristicResult.state.offset == 72


def test_a_launch_has_a_workspace_of_its_own_in_the_arena() -> None:
    plan = planned()
    library, generated = plan.launches
    code = plan.kernel_by_name[library.kernel]
    assert code.language == "library"
    assert LibraryKernel.from_json(code.source).problem.epilogue == "bias"
    workspace = plan.buffer_by_name[library.args[-1]]
    assert (workspace.kind, workspace.dtype, workspace.shape) == ("arena", "uint8", (256,))
    assert library.writes == (3, 4)
    assert generated.deps == (0,)
    assert not code.overlaps


def test_plans_with_library_kernels_are_stored() -> None:
    plan = planned()
    assert plan_from_json(plan_to_json(plan)) == plan
    assert set(SOURCE_SUFFIX) == set(LANGUAGES)


def test_the_null_device_takes_them() -> None:
    import numpy as np

    plan = planned()
    inputs = [np.zeros(b.shape, b.dtype) for b in map(plan.buffer_by_name.__getitem__, plan.inputs)]
    with NullDevice() as device, device.load(plan, {}) as loaded:
        loaded.run(inputs)


def test_other_devices_refuse_them_in_one_sentence() -> None:
    from tilewright.codegen.builders.emulator_build import EmulatorBuilder
    from tilewright.runtime.emulator.device import EmulatorDevice

    with EmulatorDevice(EmulatorBuilder()) as device, pytest.raises(InputError, match="got library"):
        device.load(planned(), {})


def broken(plan: ExecutionPlan, **changes: Any) -> ExecutionPlan:
    first, *others = plan.launches
    return plan.replace(launches=(replace(first, **changes), *others))


def with_source(plan: ExecutionPlan, source: str) -> ExecutionPlan:
    kernels = [replace(k, source=source) if k.language == "library" else k for k in plan.kernels]
    return plan.replace(kernels=tuple(kernels))


def test_faults_of_library_launches_are_found() -> None:
    plan = planned()
    first = plan.launches[0]
    faults = {
        "expected 5 arguments": broken(plan, args=(*first.args, first.args[0])),
        "nothing in place": broken(plan, writes=(3,)),
        "elements of float32": broken(plan, args=(first.args[2], *first.args[1:])),
        "elements of uint8": broken(plan, args=(*first.args[:-1], first.args[3])),
        "an algorithm in hex": with_source(plan, kernel(algorithm="xyz").to_json()),
        "not JSON": with_source(plan, "{"),
        "unknown key": with_source(plan, kernel().to_json()[:-1] + ', "more": 1}'),
    }
    for text, bad in faults.items():
        with pytest.raises(InputError, match=text):
            validate(bad)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"m": 0}, "expected m in"),
        ({"dtype": "float64"}, "expected dtype among"),
        ({"dtype": "float16", "result": "bfloat16"}, "expected result among"),
        ({"epilogue": "sigmoid"}, "expected epilogue among"),
        ({"a": Matrix(3, 32)}, "leading dimension of a"),
        ({"b": Matrix(6, -1)}, "stride of b"),
        ({"d": Matrix(4, 0)}, "apart from each other"),
        ({"a": Matrix(4, 32, 2)}, "multiple of 16 bytes"),
        ({"dtype": "float16", "tf32": True}, "tf32 only with float32"),
    ],
)
def test_problems_that_make_no_sense_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        kernel(problem=replace(PROBLEM, **change)).check()


def test_what_a_problem_spans() -> None:
    spans = {a.role: a.span for a in replace(PROBLEM, epilogue="bias", c=Matrix(8, 0)).arguments()}
    assert spans == {"a": 32 + 32, "b": 48 + 48, "bias": 4, "c": 5 * 8 + 4, "d": 24 + 24}


# Loading, with a stand-in for the library


def opened(fake: FakeCublasLt) -> tuple[Shared[Any], Any]:
    return Shared(), lambda name: CublasLt(fake)


def test_a_library_of_another_version_is_refused() -> None:
    pool, opener = opened(FakeCublasLt(version=130200))
    with pytest.raises(InputError, match=r"cublaslt 13\.1\.0, this machine has 13\.2\.0"):
        PlanLibraries(pool, planned(), opener)
    assert len(pool) == 0


def test_a_missing_library_is_named_with_the_kernel() -> None:
    def missing(name: str) -> Any:
        raise DeviceMissingError("cuBLASLt is not on this machine")

    with pytest.raises(DeviceMissingError, match="kernel 'k_library': cuBLASLt is not on this machine"):
        PlanLibraries(Shared(), planned(), missing)


def test_plans_share_a_library_and_the_last_one_closes_it() -> None:
    fake = FakeCublasLt()
    pool, opener = opened(fake)
    plan = planned()
    one, other = PlanLibraries(pool, plan, opener), PlanLibraries(pool, plan, opener)
    assert fake.log.count("Create") == 1
    one.prepare(plan.launches[0], dict.fromkeys(plan.launches[0].args, 4096), "launch 0")
    one.close()
    assert "Destroy" not in fake.log
    other.close()
    assert fake.log[-1] == "Destroy"
    assert not fake.objects


def test_an_algorithm_that_does_not_run_here_is_refused() -> None:
    fake = FakeCublasLt(algorithms=1)  # the plan stores the second one
    pool, opener = opened(fake)
    plan = planned()
    libraries = PlanLibraries(pool, plan, opener)
    with pytest.raises(DeviceError, match="launch 0: this GPU does not run the stored algorithm"):
        libraries.prepare(plan.launches[0], dict.fromkeys(plan.launches[0].args, 4096), "launch 0")
    libraries.close()
    assert not fake.objects


def test_unsupported_problems_have_no_algorithms() -> None:
    library = CublasLt(FakeCublasLt(gelu=False))
    assert library.kernels(replace(PROBLEM, epilogue="gelu"), 0) == []
    assert [k.workspace_bytes for k in library.kernels(PROBLEM, 0)] == [0, 256, 512]


def test_failures_name_the_function_and_the_status() -> None:
    fake = FakeCublasLt()
    library = CublasLt(fake)
    fake._MatmulAlgoGetHeuristic = lambda *a: 7  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="AlgoGetHeuristic failed: CUBLAS_STATUS_INVALID_VALUE"):
        library.kernels(PROBLEM, 0)
    assert len(fake.objects) == 1  # the handle alone


def test_random_constants_are_made_for_programs() -> None:
    from tilewright.libraries.comparison import timed_program

    program = candidates(epilogue_kernel("q", 12))[0]
    alone = timed_program(program, {1, 2})
    assert [p.tensor.shape for p in alone.main.params] == [(6, 8), (6, 12)]
    assert len(alone.constants) == 2
    assert all(array.std() > 0 for _, array in alone.constants.items())


def test_saved_executables_hold_them(tmp_path: Path) -> None:
    plan = planned()
    exe = Executable(Artifact(plan, {}), "cuda:sm_90a")
    exe.save(tmp_path / "saved.tw")
    assert load(tmp_path / "saved.tw").plan == plan
