"""Updates of rows of state: what is found, that it changes what the dense update does, and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir import Constants, Module
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.work.operator_work import kernel_work
from tilewright.passes.kernels.decision import decision_of

UPDATES, ROWS, WIDTH = 40, 3000, 16


def step(
    body: str, *, updates: int = UPDATES, rows: int = ROWS, width: int = WIDTH, at: str = "i0"
) -> Module:
    """A step whose state `table` becomes what `body` computes of `%sums`, the sums of updates of its rows."""
    text = f"""module @step {{
      tensor.func @main(%u: f32[{updates}, {width}], %i: i32[{updates}], %table: f32[{rows}, {width}],
          %rate: f32[], updates = [[2, 1], [3, 2]])
          -> f32[{updates}, {width}], f32[{rows}, {width}], f32[] {{
        %read = tensor.gather(%table, %i, par = (n: {updates}, c: {width}), reads = [[n]], at = [i0, c])
          : f32[{updates}, {width}]
        %zero = tensor.map(par = (r: {rows}, c: {width}), reads = []) : f32[{rows}, {width}] {{
          %z = scalar.const(value = 0.0, dtype = "f32") : f32 scalar.yield(%z) }}
        %sums = tensor.scatter(%zero, %u, %i, par = (n: {updates}, c: {width}), reads = [[n, c], [n]],
          at = [{at}, c]) : f32[{rows}, {width}] {{
          ^(%old: f32, %new: f32) %s = scalar.add(%old, %new) : f32 scalar.yield(%s) }}
        {body}
        tensor.return(%read, %new, %rate)
      }}
    }}"""
    text = text.replace("WHOLE", f"par = (r: {rows}, c: {width})").replace("TYPE", f"f32[{rows}, {width}]")
    rng = np.random.default_rng(0)
    table = rng.standard_normal((rows, width)).astype(np.float32)
    return tw.parse(text).with_constants(Constants({"table": table, "rate": np.float32(0.25)}))


SGD = """%new = tensor.map(%table, %sums, %rate, WHOLE, reads = [[r, c], [r, c], []]) : TYPE {
  ^(%p: f32, %g: f32, %lr: f32) %d = scalar.mul(%g, %lr) : f32
  %q = scalar.sub(%p, %d) : f32 scalar.yield(%q) }"""
KEPT = """%half = tensor.map(%sums, WHOLE, reads = [[r, c]]) : TYPE {
  ^(%g: f32) %h = scalar.const(value = 0.5, dtype = "f32") : f32 %m = scalar.mul(%g, %h) : f32
  scalar.yield(%m) }
%next = tensor.map(%table, %half, WHOLE, reads = [[r, c], [r, c]]) : TYPE {
  ^(%p: f32, %g: f32) %q = scalar.add(%p, %g) : f32 scalar.yield(%q) }
%new = tensor.map(%next, %table, %rate, WHOLE, reads = [[r, c], [r, c], []]) : TYPE {
  ^(%a: f32, %b: f32, %lr: f32) %z = scalar.const(value = 0.0, dtype = "f32") : f32
  %some = scalar.gt(%lr, %z) : bool %s = scalar.select(%some, %a, %b) : f32 scalar.yield(%s) }"""
DECAY = """%new = tensor.map(%table, %sums, %rate, WHOLE, reads = [[r, c], [r, c], []]) : TYPE {
  ^(%p: f32, %g: f32, %lr: f32) %d = scalar.mul(%p, %lr) : f32
  %q = scalar.add(%d, %g) : f32 scalar.yield(%q) }"""
BY_ROW = """%new = tensor.map(%table, %sums, WHOLE, reads = [[r, c], [r, c]]) : TYPE {
  ^(%p: f32, %g: f32) %r = scalar.index(at = r) : i32 %x = scalar.cast(%r, dtype = "f32") : f32
  %d = scalar.mul(%g, %x) : f32 %q = scalar.sub(%p, %d) : f32 scalar.yield(%q) }"""
SHIFTED = """%moved = tensor.map(%sums, WHOLE, reads = [[2999 - r, c]]) : TYPE { ^(%g: f32) scalar.yield(%g) }
%new = tensor.map(%table, %moved, WHOLE, reads = [[r, c], [r, c]]) : TYPE {
  ^(%p: f32, %g: f32) %q = scalar.sub(%p, %g) : f32 scalar.yield(%q) }"""


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
    module = step(SGD, updates=4096, rows=64)
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


def network(reads: int = 1) -> Module:
    """The means of rows of a table, which `reads` lookups name."""
    ids = "".join(f", %ids{k}: i32[{UPDATES}]" for k in range(reads))
    body = "".join(
        f"""
        %table{k} = graph.constant(name = "table{k}") : f32[{ROWS}, {WIDTH}]
        %rows{k} = graph.take(%table{k}, %ids{k}, axis = 0, mode = "{mode}", batch_dims = 0)
          : f32[{UPDATES}, {WIDTH}]
        %s{k + 1} = graph.multiply(%s{k}, %rows{k}) : f32[{UPDATES}, {WIDTH}]"""
        for k, mode in zip(range(reads), ("wrap", "clip"), strict=False)
    )
    listed = ", ".join(f'"table{k}"' for k in range(reads))
    text = f"""module @net(parameters = [{listed}]) {{
      graph.func @main(%s0: f32[{UPDATES}, {WIDTH}]{ids}) -> f32[{UPDATES}] {{{body}
        %out = graph.mean(%s{reads}, axis = [1], keepdims = false) : f32[{UPDATES}]
        graph.return(%out) }} }}"""
    rng = np.random.default_rng(0)
    arrays = {f"table{k}": rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for k in range(reads)}
    return tw.parse(text).with_constants(Constants(arrays))


def batch(rng: np.random.Generator, reads: int = 1) -> list[np.ndarray]:
    """Rows that many name, that one names, and that do not exist."""
    few, any_row = rng.integers(0, 3, (reads, UPDATES)), rng.integers(-3, ROWS + 3, (reads, UPDATES))
    ids = np.where(rng.random((reads, UPDATES)) < 0.5, few, any_row).astype(np.int32)
    x = rng.standard_normal((UPDATES, WIDTH)).astype(np.float32)
    return [x, *ids, rng.standard_normal(UPDATES).astype(np.float32)]


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
