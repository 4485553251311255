"""Libraries win only by measured time and equal results; what came of it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decision_samples import with_template
from library_samples import FakeCublasLt, FakeLibraryDevice
from test_library_candidates import epilogue_kernel, named_kernel, random_arrays, run_main, whole

from tilewright.compilation.planning import library_kernels
from tilewright.devices.targets import resolve_target
from tilewright.ir import Block, Builder, Func, Level, Module
from tilewright.libraries import comparison as library_comparison
from tilewright.libraries.candidates import library_candidates
from tilewright.libraries.choice import LibraryChoice
from tilewright.libraries.comparison import Compared
from tilewright.libraries.report import facts_without_measurement, library_lines, won_by
from tilewright.measuring.budget import Budget, Turns
from tilewright.passes.kernels.decision import KernelCost, with_decision
from tilewright.runtime.errors import DeviceError, DeviceLostError
from tilewright.runtime.libraries.cublaslt import CublasLt


class FakeDatabase:
    """Choices by subject."""

    def __init__(self) -> None:
        self.choices: dict[str, Any] = {}

    def choice(self, key: str) -> Any:
        return self.choices.get(key)

    def put_choice(self, key: str, choice: Any) -> None:
        assert key.startswith("library:")  # what a database takes names what was chosen
        self.choices[key] = choice


class FakeMeasurer:
    """Times by rule: generated programs take `generated_s`, those of a library what `library_s` says."""

    def __init__(self, library_s: dict[int, float | Exception], generated_s: float = 1e-4) -> None:
        self.target = resolve_target("cuda:sm_90a")
        self.device = FakeLibraryDevice(CublasLt(FakeCublasLt()))
        self.library_s, self.generated_s = library_s, generated_s
        self.asked = self.reused = 0
        self.database = FakeDatabase()

    def key(self, subject: str) -> str:
        return subject

    def seconds(self, modules: list[Module]) -> list[float]:
        (module,) = modules
        kernels = library_kernels(module)
        if not kernels:
            return [self.generated_s]
        self.asked += 1
        algorithm = int.from_bytes(bytes.fromhex(next(iter(kernels.values())).algorithm)[:8], "little")
        found = self.library_s[algorithm]
        if isinstance(found, Exception):
            raise found
        return [found]


@pytest.fixture
def same_results(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Programs give zeros; `off` is added to those with a library kernel."""
    state = {"off": 0.0}

    def outputs(_: Any, module: Module) -> list[np.ndarray]:
        return [np.ones(4, np.float32) + (state["off"] if library_kernels(module) else 0.0)]

    monkeypatch.setattr(library_comparison, "_outputs", outputs)
    return state


def chosen(measurer: FakeMeasurer, kernel: Func, **options: Any) -> tuple[Module, dict[str, Any]]:
    choice = LibraryChoice(measurer, progress=False, **options)  # type: ignore[arg-type]
    module = whole(with_template(kernel, "contract", None))
    return choice.choose(module), choice.facts


def test_the_fastest_algorithm_wins(same_results: dict[str, float]) -> None:
    kernel = epilogue_kernel("q", 12)
    module, facts = chosen(FakeMeasurer({1: 9e-5, 2: 5e-5, 3: 7e-5}), kernel)
    (found,) = library_kernels(module).values()
    assert found.algorithm.startswith("02")
    (row,) = facts["compared"]
    assert (row["chosen"], row["library_s"], row["generated_s"]) == ("cublaslt", 5e-5, 1e-4)
    assert row["candidates"] == 12
    assert facts["launches"]["cublaslt"] == 1
    assert set(facts["unavailable"]) == {"cudnn"}
    arrays = random_arrays(kernel)
    (got,), (wanted,) = run_main(module, arrays), run_main(whole(kernel), arrays)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_library_must_be_faster_by_more_than_noise(same_results: dict[str, float]) -> None:
    module, facts = chosen(FakeMeasurer(dict.fromkeys((1, 2, 3), 0.985e-4)), epilogue_kernel("q", 12))
    assert not library_kernels(module)
    assert facts["compared"][0]["chosen"] == "generated"
    assert facts["compared"][0]["library_s"] == 0.985e-4
    assert facts["generated_share_of_operators"] == 1.0


def test_wrong_results_are_refused_however_fast(same_results: dict[str, float]) -> None:
    same_results["off"] = 0.01
    module, facts = chosen(FakeMeasurer(dict.fromkeys((1, 2, 3), 1e-6)), named_kernel("rows by columns"))
    assert not library_kernels(module)
    (row,) = facts["compared"]
    assert row["failed"] == row["candidates"] == 3
    assert "results differ by 0.01 of their norm" in row["failures"][0]


def test_candidates_that_fail_are_left_out_and_a_lost_device_is_not(same_results: dict[str, float]) -> None:
    times: dict[int, float | Exception] = {1: DeviceError("cublasLtMatmul failed"), 2: 5e-5, 3: 6e-5}
    module, facts = chosen(FakeMeasurer(times), named_kernel("rows by columns"))
    assert len(library_kernels(module)) == 1
    assert facts["compared"][0]["failures"] == ["cublasLtMatmul failed"]
    times[1] = DeviceLostError("gone")
    with pytest.raises(DeviceLostError):
        chosen(FakeMeasurer(times), named_kernel("rows by columns"))


def test_nothing_is_compared_without_budget(same_results: dict[str, float]) -> None:
    measurer = FakeMeasurer(dict.fromkeys((1, 2, 3), 1e-6))
    _, facts = chosen(measurer, named_kernel("rows by columns"), budget=Budget(0.0))
    assert measurer.asked == 0
    assert facts["compared"] == []


def test_what_was_compared_before_is_recalled(same_results: dict[str, float]) -> None:
    kernel = epilogue_kernel("q", 12)
    first = FakeMeasurer({1: 9e-5, 2: 5e-5, 3: 7e-5})
    module, facts = chosen(first, kernel)
    again = FakeMeasurer({})
    again.database = first.database
    recalled, same = chosen(again, kernel, budget=Budget(0.0))
    assert again.asked == 0
    assert again.reused == 12
    assert library_kernels(recalled) == library_kernels(module)
    assert same == facts
    again.device.provider.close()
    again.device = FakeLibraryDevice(CublasLt(FakeCublasLt(version=130200)))
    other, _ = chosen(again, kernel, budget=Budget(0.0))
    assert not library_kernels(other)  # what was said of another version does not count


def test_turns_share_a_budget_by_weight() -> None:
    now = [0.0]
    turns = Turns(Budget(12.0, clock=lambda: now[0]), [3.0, 1.0, 2.0])
    first = turns.take(3.0)
    assert first.seconds == pytest.approx(6.0)
    now[0] = 8.0  # it took longer than it had
    assert first.over
    second = turns.take(1.0)
    assert second.seconds == pytest.approx(4.0 / 3.0)
    last = turns.take(2.0)  # the second took nothing
    assert last.seconds == pytest.approx(4.0)
    assert Turns(Budget(None), [1.0, 1.0]).take(1.0).seconds is None


def test_a_comparison_that_the_budget_cut_short_counts_until_there_is_time(
    same_results: dict[str, float],
) -> None:
    kernel = named_kernel("rows by columns")
    first = FakeMeasurer({1: 9e-5, 2: 5e-5, 3: 7e-5})
    module, _ = chosen(first, kernel, budget=Budget(1.5, clock=lambda: float(first.asked)))
    assert first.asked == 2
    again = FakeMeasurer({1: 9e-5, 2: 5e-5, 3: 7e-5})
    again.database = first.database
    recalled, _ = chosen(again, kernel, budget=Budget(0.0))
    assert again.asked == 0
    assert library_kernels(recalled) == library_kernels(module)
    whole_now, _ = chosen(again, kernel)
    assert again.asked == 3
    (found,) = library_kernels(whole_now).values()
    assert found.algorithm.startswith("02")


def test_ways_take_turns_and_what_was_cut_short_is_said(same_results: dict[str, float]) -> None:
    measurer = FakeMeasurer({1: 9e-5, 2: 5e-5, 3: 7e-5})
    clock = Budget(5.5, clock=lambda: float(measurer.asked))
    _, facts = chosen(measurer, epilogue_kernel("q", 12), budget=clock)
    (row,) = facts["compared"]
    assert (row["candidates"], row["cut_short"]) == (6, True)
    assert row["fastest"] == {"cublaslt": 5e-5}
    kernel = with_template(epilogue_kernel("q", 12), "contract")
    programs = library_candidates(kernel, measurer.target.hardware, measurer.device, missing={})
    problems = [k.problem for m in programs for k in library_kernels(m).values()]
    assert problems[0].has_bias
    assert problems[0].c is not None  # the way that takes most along comes first
    assert problems[-1].epilogue == "none"


def test_one_candidate_is_timed_however_little_time_there_is(same_results: dict[str, float]) -> None:
    now = [0.0]

    class Slow(FakeMeasurer):
        def seconds(self, modules: list[Module]) -> list[float]:
            now[0] += 2.0
            return super().seconds(modules)

    measurer, clock = Slow({1: 5e-5}), Budget(1.0, clock=lambda: now[0])
    _, facts = chosen(measurer, named_kernel("rows by columns"), budget=clock)
    (row,) = facts["compared"]
    assert (row["candidates"], row["library_s"], row["chosen"]) == (1, 5e-5, "cublaslt")


def test_what_a_library_may_save_more_of_comes_first(same_results: dict[str, float]) -> None:
    order: list[str] = []

    class Watching(FakeMeasurer):
        def seconds(self, modules: list[Module]) -> list[float]:
            order.extend(f.name.removesuffix("_library") for f in modules[0].funcs if f.name != "main")
            return super().seconds(modules)

    def kernel(name: str, case: str, estimate_s: float, bound_s: float) -> Func:
        cost = KernelCost(estimate_s, bound_s)
        return with_template(replace(named_kernel(case), name=name), "contract", cost=cost)

    near, far = kernel("near", "rows by columns", 9e-4, 8.9e-4), kernel("far", "batches", 5e-4, 1e-4)
    measured = with_decision(kernel("measured", "one row", 1e-5, 1e-6), measured_s=1e-3)
    modules = [whole(f) for f in (near, far, measured)]
    params = tuple(p for m in modules for p in m.main.params)
    calls = tuple(m.main.body.ops[0] for m in modules)
    results = [v for op in calls for v in op.results]
    b = Builder()
    b.emit("tensor.return", results)
    types = tuple(v.type for v in results)
    main = Func(Level.TENSOR, "main", Block(params, (*calls, *b.ops)), types)
    module = Module("three", (near, far, measured, main))
    LibraryChoice(Watching(dict.fromkeys((1, 2, 3), 1e-5)), progress=False).choose(module)  # type: ignore[arg-type]
    assert list(dict.fromkeys(order)) == ["measured", "far", "near"]


def test_records_that_are_none_are_left(same_results: dict[str, float]) -> None:
    compared = Compared("k", 2, 1e-5, 2e-5, "cublaslt", 3)
    text = compared.to_json()
    assert Compared.from_json(text, "k", 2) == compared
    wrong = (
        "{}",
        "[1]",
        text.replace("1e-05", "-1"),
        text.replace("null", '"{}"'),
        text[:-1] + ', "row": 1}',
    )
    assert [Compared.from_json(t, "k", 2) for t in wrong] == [None] * 5


def test_devices_without_libraries_are_said_so() -> None:
    measurer = FakeMeasurer({})
    measurer.device = type("Plain", (), {"name": "a CPU"})()  # type: ignore[assignment]
    module, facts = chosen(measurer, named_kernel("rows by columns"))
    assert not library_kernels(module)
    assert facts["unavailable"]["cublaslt"] == "a CPU runs no libraries"


def test_the_report_in_lines(same_results: dict[str, float]) -> None:
    _, facts = chosen(FakeMeasurer({1: 9e-5, 2: 5e-5, 3: 7e-5}), named_kernel("rows by columns"))
    first, second, third = library_lines(facts)
    assert first == (
        "libraries: 0 of 1 launches are generated, 1 of cublaslt; generated kernels take 0 % of the time"
    )
    assert second == "1 kernels compared with 3 library kernels: 1 taken"
    assert third.startswith("cudnn does not compete: ")


def test_a_network_of_generated_kernels_is_won_by_them() -> None:
    facts = won_by(whole(named_kernel("rows by columns")))
    assert facts["launches"] == {"generated": 1}
    assert facts["generated_share_of_time"] == 1.0


def test_without_measurement_the_facts_say_why_there_is_no_library_kernel():
    facts = facts_without_measurement()
    assert set(facts["unavailable"]) == {"cublaslt", "cudnn"}
    assert all('tune="model" measures nothing' in reason for reason in facts["unavailable"].values())
    assert facts["compared"] == []
