"""Library kernels that won alone stay only where the network's replay does not say otherwise."""

from __future__ import annotations

from functools import partial

import pytest
from library_samples import FakeCublasLt, FakeLibraryDevice
from test_library_candidates import epilogue_kernel, whole
from test_library_choice import FakeMeasurer, same_results  # noqa: F401

from tilewright.compilation.planning import library_kernels
from tilewright.ir import Func
from tilewright.libraries.choice import LibraryChoice, library_changes
from tilewright.measuring.budget import Budget
from tilewright.measuring.network_validation import validated
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.runtime.libraries.cublaslt import CublasLt
from tilewright.runtime.null.device import NullDevice

GROUPS = [["a", "b"], ["c"], ["d"]]


def replays(gains):
    """Replays that each library kernel makes shorter by so many seconds, of ten; all compared pairs."""
    asked = []

    def pairs(old, new):
        asked.append((old, new))
        taken = ([n for group in GROUPS if choices[group[0]] for n in group] for choices in (old, new))
        return tuple([10.0 - sum(gains[n] for n in names)] * 5 for names in taken)

    return pairs, asked


@pytest.mark.parametrize(
    ("gains", "refused"),
    [
        ({"a": 1.0, "b": 1.0, "c": 0.5, "d": 0.0}, []),
        ({"a": 1.0, "b": 1.0, "c": -0.5, "d": 0.0}, ["c"]),
        ({"a": -1.0, "b": -1.0, "c": -0.5, "d": 0.0}, ["a", "c", "d"]),
        ({"a": -1.0, "b": -1.0, "c": 0.5, "d": -0.2}, ["a", "d"]),
    ],
)
def test_what_makes_the_network_slower_is_left_out(gains, refused):
    pairs, asked = replays(gains)
    validation = validated(*library_changes(GROUPS), pairs, Budget())
    assert validation.swapped == refused
    assert validation.compared == len(asked) == 4
    assert validation.arbitrated_s <= validation.isolated_s


def test_without_time_they_stay():
    pairs, asked = replays({})
    validation = validated(*library_changes(GROUPS), pairs, Budget(0.0))
    assert (validation.swapped, validation.arbitrated_s, asked) == ([], None, [])


class ReplayingDevice(FakeLibraryDevice):
    """Replays a plan in a time that says whether a library has a part in it."""

    def __init__(self, library_s):
        super().__init__(CublasLt(FakeCublasLt()))
        self.library_s, self.loads = library_s, []

    def load(self, plan, constants):
        loaded = NullDevice().load(plan, constants)
        taken = any(k.language == "library" for k in plan.kernels)
        loaded.time = lambda inputs, repeats: [self.library_s if taken else 1e-3] * repeats
        self.loads.append(loaded)
        return loaded


def generated(kernel: Func):
    module = whole(kernel)
    return run_pipeline(module, Pipeline.parse("choose-parameters"), PassContext(target="cuda:sm_90a"))


@pytest.mark.parametrize(("library_s", "stays"), [(9e-4, True), (1.2e-3, False)])
def test_the_replay_decides_and_is_recalled(same_results, library_s, stays):  # noqa: F811
    module = generated(epilogue_kernel("q", 12))
    measurer = FakeMeasurer({1: 9e-5, 2: 5e-5, 3: 7e-5})
    measurer.device = ReplayingDevice(library_s)
    choose = partial(LibraryChoice, measurer, progress=False, streams="serial")
    first, again = choose(), choose()
    chosen = first.choose(module)
    assert bool(library_kernels(chosen)) == stays
    facts = first.facts["in_network"]
    assert facts["compared"] == 1
    assert bool(facts["refused"]) != stays
    assert first.facts["compared"][0]["chosen"] == ("cublaslt" if stays else "generated")
    assert len(measurer.device.loads) == 2
    assert all(x._closed for x in measurer.device.loads)
    assert library_kernels(again.choose(module)) == library_kernels(chosen)
    assert again.facts["in_network"] == {**facts, "compared": 0}
    assert len(measurer.device.loads) == 2
