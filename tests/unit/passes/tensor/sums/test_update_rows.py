"""Updates of rows of state: what is found, that it changes what the dense update does, and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_updates import BY_ROW, DECAY, KEPT, ROWS, SGD, SHIFTED, UPDATES, WIDTH, batch, network, step

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir import Module
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.work.operator_work import kernel_work
from tilewright.passes.kernels.decision import decision_of


def rewritten(module: Module, target: str = "cuda:sm_90a:h200") -> Module:
    resolved = resolve_target(target)
    context = PassContext(target=str(resolved), hardware=resolved.hardware)
    return run_pipeline(module, Pipeline.parse("update-rows"), context)


def names(module: Module) -> list[str]:
    return [op.name for op in module.main.body.ops]


@pytest.mark.parametrize("body", [SGD, KEPT])
def test_maps_that_keep_what_gets_no_sum_update_rows(body):
    ops = names(rewritten(step(body)))
    assert ops.count("tensor.update_rows") == 1
    assert "tensor.scatter" not in ops


@pytest.mark.parametrize("body", [DECAY, BY_ROW, SHIFTED], ids=["decay", "by row", "moved"])
def test_maps_that_change_other_rows_stay(body):
    module = step(body)
    assert rewritten(module) is module


def test_sums_that_somebody_else_reads_stay():
    """The sums themselves, or new state that a result of the caller is made of."""
    more = "%twice = tensor.map(%new, par = (n: 40, c: 16), reads = [[n, c]]) : f32[40, 16] {"
    more += " ^(%x: f32) %y = scalar.add(%x, %x) : f32 scalar.yield(%y) }"
    text = tw.show(step(f"{SGD}\n{more}", at="i0")).replace("tensor.return(%read", "tensor.return(%read")
    module = tw.parse(text)
    *ops, end = module.main.body.ops
    twice = next(op.result for op in ops if op.result.tensor.shape == (40, 16) and op.name == "tensor.map")
    end = end.with_operands((twice, *end.operands[1:]))
    main = module.main.with_body(module.main.body.with_ops((*ops, end)))
    module = module.with_funcs((main,))
    assert rewritten(module) is module


def test_many_updates_of_few_rows_are_summed_densely():
    module = step(SGD, updates=1 << 14, rows=16)
    assert rewritten(module) is module


indices = st.lists(st.integers(-4, ROWS + 3) | st.integers(0, 3), min_size=UPDATES, max_size=UPDATES)


@settings(max_examples=30, deadline=None)
@given(indices, st.sampled_from([SGD, KEPT]), st.booleans())
def test_rows_change_as_the_dense_update_changes_them(chosen, body, negative):
    at = "i0 + min(1, max(0, 0 - i0)) * 3000" if negative else "i0"
    module = step(body, at=at)
    u = np.random.default_rng(1).standard_normal((UPDATES, WIDTH)).astype(np.float32)
    arrays = [u, np.int32(chosen), module.constants["table"], module.constants["rate"]]
    found = tw.interpret(rewritten(module), *arrays)
    for dense, rows in zip(tw.interpret(module, *arrays), found, strict=True):
        np.testing.assert_array_equal(dense, rows)


@pytest.mark.parametrize(
    ("target", "runs"), [pytest.param("emulator", 2, marks=pytest.mark.emulator), ("opencl", 10)]
)
def test_a_step_changes_the_rows_where_they_lie(target, runs):
    """The state elsewhere is the same bits, times change nothing, and no array of sums is kept."""
    module = tw.train_step(network(2), "mse", tw.optim.sgd(0.5), loss_scale=None)
    state = None
    rng = np.random.default_rng(2)
    with tw.compile(module, target) as exe:
        assert exe.plan.arena_bytes < ROWS * WIDTH * 4
        for _ in range(runs):
            before, arrays = exe.state["table1"], batch(rng, 2)
            exe.step(*arrays)
            _, state = tw.interpret_step(module, arrays, state)
            np.testing.assert_allclose(exe.state["table1"], state["table1"], rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(exe.state["table0"], state["table0"], rtol=1e-6, atol=1e-6)
            named = np.unique(np.clip(arrays[2], 0, ROWS - 1))
            others = np.setdiff1d(np.arange(ROWS), named)
            np.testing.assert_array_equal(exe.state["table1"][others], before[others])
            assert (exe.state["table1"][named] != before[named]).any(1).all()
        before = exe.state["table0"]
        exe.time(*arrays, repeats=3)
        np.testing.assert_array_equal(exe.state["table0"], before)


def test_work_and_estimate_count_the_rows_that_updates_name():
    """Not the table: words in are updates, links and a row for each, words out are these rows."""
    module = run_pipeline(
        rewritten(step(SGD)),
        Pipeline.parse("fuse-kernels, choose-parameters"),
        PassContext(target="cuda:sm_90a:h200", hardware=resolve_target("cuda:sm_90a:h200").hardware),
    )
    (kernel,) = (f for f in module.funcs if any(op.name == "tensor.update_rows" for op in f.body.ops))
    work = kernel_work(kernel)
    assert work.words_out == UPDATES * WIDTH
    assert work.words_in == 2 * UPDATES * WIDTH + 3 * UPDATES + 1
    cost = decision_of(kernel).cost
    assert cost.bound_s <= cost.estimate_s < 2e-6


def test_saved_state_goes_on_bit_by_bit(tmp_path):
    """A step behind a saved state is that of the run it was saved from, rows and all others."""
    module = tw.train_step(network(), "mse", tw.optim.sgd(0.5), loss_scale=None)
    rng, path = np.random.default_rng(4), tmp_path / "state.safetensors"
    with tw.compile(module, "opencl") as exe:
        exe.step(*batch(rng))
        exe.save_state(path)
        last = batch(rng)
        exe.step(*last)
        wanted = exe.state["table0"]
        exe.load_state(path)
        exe.step(*last)
        np.testing.assert_array_equal(exe.state["table0"], wanted)
