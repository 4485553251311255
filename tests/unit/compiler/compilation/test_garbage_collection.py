"""Compiling pauses collections of cyclic garbage, and leaves the process as it was."""

import gc

import pytest

import tilewright as tw
from tilewright.compilation.garbage_collection import collections_paused
from tilewright.ir import InputError
from tilewright.passes import Instrument

RELU = tw.parse("""module @m { graph.func @main(%x: f32[8]) -> f32[8] {
  %a = graph.relu(%x) : f32[8]
  graph.return(%a) } }""")


@pytest.fixture
def collections():
    """Say whether there are collections, before and after."""
    assert gc.isenabled()
    yield
    assert gc.isenabled()


@pytest.mark.usefixtures("collections")
def test_the_last_one_turns_collections_on_again():
    with collections_paused():
        with collections_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(InputError), collections_paused():
        raise InputError("bad")


@pytest.mark.usefixtures("collections")
def test_who_has_turned_them_off_keeps_them_off():
    gc.disable()
    try:
        with collections_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("collections")
def test_passes_of_a_compilation_run_without():
    seen = []

    class Look(Instrument):
        def before(self, step, module):
            seen.append(gc.isenabled())

    tw.compile(RELU, "null", instruments=[Look()])
    assert seen
    assert not any(seen)
