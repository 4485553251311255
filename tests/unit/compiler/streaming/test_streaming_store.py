"""Constants of steps on storage: what plans need, plans of steps whose data differs in kind, odd results."""

import numpy as np
import pytest
from streaming_samples import table_network

import tilewright as tw
from tilewright import streaming
from tilewright.devices import targets
from tilewright.devices.targets import resolve_target
from tilewright.ir import Constants, WorkError
from tilewright.runtime.storage.buffers import AlignedAllocator
from tilewright.runtime.storage.reader import StepReader
from tilewright.streaming.parts.line import Line
from tilewright.streaming.parts.step_modules import steps_of
from tilewright.streaming.step_planning import plan_steps
from tilewright.streaming.step_plans import StepCompiler
from tilewright.streaming.store_file import write_store

NETWORK = """
module @odd {
  graph.func @main(%x: f32[2, 64]) -> f32[2, 64], f32[2, 64], f32[2, 64], f32[2, 64], f32[64, 2] {
    %a = graph.constant(name = "a") : f32[64, 64]
    %b = graph.constant(name = "b") : f32[64, 64]
    %c = graph.constant(name = "c") : f32[64, 64]
    %d = graph.constant(name = "d") : f32[64, 64]
    %0 = graph.dense(%x, %a) : f32[2, 64]
    %1 = graph.dense(%0, %b) : f32[2, 64]
    %2 = graph.copy(%1) : f32[2, 64]
    %3 = graph.dense(%2, %c) : f32[2, 64]
    %4 = graph.dense(%3, %d) : f32[2, 64]
    %5 = graph.reshape(%2, newshape = [64, 2]) : f32[64, 2]
    graph.return(%4, %0, %0, %x, %5)
  }
}
"""


class Compiler(StepCompiler):
    """Says of one step, so many times, that its data does not fit the plan."""

    def __init__(self, step, times):
        super().__init__(resolve_target("opencl"), {})
        self.step, self.times = step, times

    def constants(self, step, plan):
        if step.begin == self.step and self.times:
            self.times -= 1
            return None
        return super().constants(step, plan)


def planned(compiler):
    steps, _ = plan_steps(Line.of(table_network()), 14_000, compiler)
    compiler.step = steps.steps[1].begin
    return steps


def stored_arrays(path):
    with StepReader(path) as reader:
        buffer = AlignedAllocator().allocate(reader.layout.largest_step_bytes)
        for number, step in enumerate(reader.layout.steps):
            reader.read(number, buffer)
            yield from ((name, array.copy()) for name, array in step.arrays(buffer.view).items())


def test_a_step_whose_data_does_not_fit_gets_a_plan_of_its_own(tmp_path):
    plain, odd = Compiler(-1, 0), Compiler(-1, 1)
    first, second = planned(plain), planned(odd)
    write_store(tmp_path / "plain", first, plain)
    write_store(tmp_path / "odd", second, odd)
    assert odd.times == 0
    assert len(second.plans) == len(first.plans) == len(set(second.plan_of))
    wanted, got = (dict(stored_arrays(tmp_path / name)) for name in ("plain", "odd"))
    assert wanted.keys() == got.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


def test_a_step_that_never_fits_is_told_and_leaves_no_file(tmp_path):
    compiler = Compiler(-1, 5)
    steps = planned(compiler)
    with pytest.raises(WorkError, match="step 1 of @table compiles to another plan every time"):
        write_store(tmp_path / "store", steps, compiler)
    assert list(tmp_path.iterdir()) == []


def test_results_that_are_inputs_alike_or_other_shapes_of_others():
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((64, 64)).astype(np.float32) / 8 for name in "abcd"}
    module = tw.parse(NETWORK).with_constants(Constants(arrays))
    batches = [[rng.standard_normal((2, 64)).astype(np.float32)] for _ in range(2)]
    with streaming.compile(module, "opencl", memory_cap=42_000) as exe:
        assert exe.report()["steps"] > 1
        for schedule in ("pr", "ar"):
            for outputs, inputs in zip(exe.run(batches, schedule), batches, strict=True):
                for got, wanted in zip(outputs, tw.interpret(module, *inputs), strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["cuda:sm_90a:h200", "cuda:sm_90a"])
def test_plans_and_data_are_for_the_same_device(target):
    """The text of a resolved target names no device, so steps are compiled with the target itself."""
    resolved = resolve_target(target)
    compiler = StepCompiler(resolved, {})
    steps, _ = plan_steps(Line.of(table_network()), 14_000, compiler)
    assert {p.artifact.facts["hardware"] for p in steps.plans} == {resolved.hardware.name}
    for number, step in enumerate(steps.steps):
        assert compiler.constants(step, steps.plan(number)) is not None


def test_a_gpu_that_is_present_gives_its_record_to_steps(monkeypatch):
    monkeypatch.setattr(targets, "_gpu", lambda: targets._Gpu("sm_90a", "NVIDIA H200", "1", 132))
    resolved = resolve_target("cuda")
    plan = StepCompiler(resolved, {}).compile(steps_of(Line.of(table_network()), [(0, 1)])[0])
    assert plan.artifact.facts["hardware"] == "H200" == resolved.hardware.name
    assert targets.target_here(plan.plan.target).hardware.name == "H200"
