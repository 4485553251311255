"""Dense updates that look sums of rows up: what is found, equal bits, and no array of sums in memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_updates import BY_ROW, DECAY, ROWS, SHIFTED, UPDATES, WIDTH, batch, network, step

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir import Module
from tilewright.passes import PassContext, Pipeline, run_pipeline


def rewritten(module: Module) -> Module:
    target = resolve_target("cuda:sm_90a:h200")
    context = PassContext(target=str(target), hardware=target.hardware)
    return run_pipeline(module, Pipeline.parse("look-up-sums"), context)


@pytest.fixture
def looking_up(monkeypatch):
    """Look up wherever it goes: tables of tests are small."""
    from tilewright.passes.tensor.sums import look_up_sums

    monkeypatch.setattr(look_up_sums, "looking_up_pays", lambda *a: True)


def test_the_model_decides():
    small, large = step(DECAY), step(DECAY, rows=100_000, width=64)
    assert rewritten(small) is small
    names = [op.name for op in rewritten(large).main.body.ops]
    assert names.count("tensor.join_updates") == 1


def test_sums_that_are_read_elsewhere_stay(looking_up):
    module = step(SHIFTED)
    assert rewritten(module) is module


indices = st.lists(st.integers(-4, ROWS + 3) | st.integers(0, 3), min_size=UPDATES, max_size=UPDATES)


@settings(max_examples=20, deadline=None)
@given(indices, st.booleans())
def test_all_rows_are_those_of_the_dense_update(chosen, by_row):
    from tilewright.passes.tensor.sums import look_up_sums

    module = step(BY_ROW if by_row else DECAY)
    u = np.random.default_rng(1).standard_normal((UPDATES, WIDTH)).astype(np.float32)
    arrays = [u, np.int32(chosen), module.constants["table"], module.constants["rate"]]
    pays, look_up_sums.looking_up_pays = look_up_sums.looking_up_pays, lambda *a: True
    try:
        new = rewritten(module)
    finally:
        look_up_sums.looking_up_pays = pays
    assert new is (module if by_row else new)
    for dense, looked_up in zip(tw.interpret(module, *arrays), tw.interpret(new, *arrays), strict=True):
        np.testing.assert_array_equal(dense, looked_up)


@pytest.mark.parametrize(
    ("target", "runs"), [pytest.param("emulator", 2, marks=pytest.mark.emulator), ("opencl", 6)]
)
@pytest.mark.parametrize(
    "optimizer", [tw.optim.sgd(0.5, momentum=0.9), tw.optim.adam(0.1)], ids=lambda o: o.name
)
def test_a_step_with_slots_stores_no_sums(looking_up, optimizer, target, runs):
    module = tw.train_step(network(2), "mse", optimizer, loss_scale=None)
    state, rng = None, np.random.default_rng(2)
    with tw.compile(module, target) as exe:
        assert any("join_updates" in text for text in exe.artifact.texts.values())
        assert exe.plan.arena_bytes < 2 * ROWS * WIDTH * 4  # of two tables
        for _ in range(runs):
            arrays = batch(rng, 2)
            exe.step(*arrays)
            _, state = tw.interpret_step(module, arrays, state)
        for name in state:
            np.testing.assert_allclose(exe.state[name], state[name], rtol=1e-5, atol=1e-5, err_msg=name)
