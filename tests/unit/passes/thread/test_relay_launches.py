"""Relays: who releases whom, what is checked once kernels are compiled, and that no bit changes."""

import json
import types
from dataclasses import replace

import numpy as np
import pytest
from decision_samples import parameters, with_template
from runtime_samples import diamond
from weight_lines import PLACES, all_lines, lines_asked_for

import tilewright as tw
from tilewright.codegen.emit.kernel import emit_cuda
from tilewright.compilation.lowering import build, lower
from tilewright.compilation.settled_relays import (
    footprint,
    settled_relays,
    unfit_relays,
    with_room_for_two,
)
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Op, Ref, parse, walk
from tilewright.ir.thread.launch_ops import (
    HOLDERS,
    PREFETCH,
    RELEASE,
    WAIT,
    holder_faults,
    holders_of,
    launched_grid,
    releases_dependents,
    without_release,
)
from tilewright.ir.thread.role_ops import known_registers, launch_registers
from tilewright.measuring.stream_choice import choose_streams, kernel_costs, relays_saving_s, work_of
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.work.weight_traffic import weight_bytes
from tilewright.passes.kernels.decision import KernelCost
from tilewright.runtime.cuda.carve_out import CARVE_OUT_PERCENT, keep_carve_out
from tilewright.runtime.plan.check import find_faults
from tilewright.runtime.plan.execution_plan import KernelResources, starts_early
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json

TARGET = "cuda:sm_90a:h100"
#: 64 MB of weights in 16 bits, which leave the L2
COLD = """#[version = "0.0.5"]
def @main(%x: Tensor[(64, 2048), float32], %a: Tensor[(4096, 2048), float32],
          %b: Tensor[(2048, 4096), float32], %c: Tensor[(4096, 2048), float32],
          %d: Tensor[(2048, 4096), float32]) {
  %0 = nn.relu(nn.dense(%x, %a, units=4096));
  %1 = nn.relu(nn.dense(%0, %b, units=2048));
  %2 = nn.relu(nn.dense(%1, %c, units=4096));
  nn.dense(%2, %d, units=2048)
}
"""


def network(tmp_path, text):
    path = tmp_path / "n.relay"
    path.write_text(text)
    return tw.frontends.relay.load(str(path), params="random", inputs=("x",), seed=0)


def pair(shared_floats=1, grid=132, block=128):
    """Two launches, one after the other, of a kernel that takes this much of a GPU."""
    return parse(f"""module @m {{
      tensor.func @main(%x: f32[{block}]) -> f32[{block}] {{
        %0 = tensor.call(%x, callee = @k) : f32[{block}]
        %1 = tensor.call(%0, callee = @k) : f32[{block}]
        tensor.return(%1)
      }}
      thread.func @k(%x: f32[{block}], %y: f32[{block}], grid = [{grid}, 1, 1], block = {block}) {{
        %s = thread.alloc() : f32[{shared_floats}] in shared
        thread.wait_for_launches()
        %v = thread.load(%x, at = [tid]) : f32
        thread.store(%v, %s, at = [0], mask = [[tid, 0, 1]])
        thread.store(%v, %y, at = [tid])
        thread.return()
      }}
    }}""")


def ops_of(module, options="", target="cuda:sm_90a"):
    out = run_pipeline(module, Pipeline.parse(f"relay-launches{options}"), PassContext(target))
    assert run_pipeline(out, Pipeline.parse(f"relay-launches{options}"), PassContext(target)) is out
    return [op.name for op in out["k"].body.ops]


def test_where_a_kernel_releases():
    assert ops_of(pair())[1:3] == [WAIT, RELEASE]
    assert ops_of(pair(), "{release=first}")[0] == RELEASE
    assert RELEASE not in ops_of(pair(), "{when=never}")
    assert RELEASE not in ops_of(pair(), target="cuda:sm_80")
    with pytest.raises(InputError, match="auto, always, never"):
        Pipeline.parse("relay-launches{when=sometimes}")


@pytest.mark.parametrize(
    ("fits", "does_not"),
    [
        ({"shared_floats": 28_000}, {"shared_floats": 30_000, "grid": 133}),
        ({"shared_floats": 30_000}, {"shared_floats": 30_000, "grid": 133}),  # they take turns
        ({"block": 1024}, {"block": 1024, "grid": 133}),
    ],
)
def test_two_launches_whose_blocks_would_crowd_are_no_relay(fits, does_not):
    assert RELEASE in ops_of(pair(**fits), "{when=always}")
    assert RELEASE not in ops_of(pair(**does_not), "{when=always}")


def held(grid, second=None, estimate_s=4e-6, options=""):
    """The blocks that hold places for a kernel of this grid, before a launch of it or of a second grid."""
    kernel = with_template(pair(grid=grid)["k"], "map", {"threads": 128, "vec": 1, "items": 1})
    kernel = with_template(kernel, "map", parameters(kernel), KernelCost(estimate_s))
    module = pair(grid=grid)
    if second is not None:
        other = replace(pair(grid=second)["k"], name="other")
        first, last, end = module.main.body.ops
        ops = (first, last.with_attrs(callee=Ref("other")), end)
        module = module.with_funcs((module.main.with_body(module.main.body.with_ops(ops)), kernel, other))
    else:
        module = module.with_funcs((module.main, kernel))
    out = run_pipeline(module, Pipeline.parse(f"relay-launches{options}"), PassContext("cuda:sm_90a"))
    tw.verify(out)
    return holders_of(out["k"])[0]


def test_places_are_held_where_the_next_launch_would_crowd():
    assert held(112) == 20
    assert held(132) == 0
    assert held(60) == 0  # those of the next launch find empty multiprocessors
    assert held(60, second=80) == 72
    assert held(112, estimate_s=5e-7) == 0  # it ends before they would
    assert held(112, options="{when=never}") == 0


def test_holders_are_whole_slices_of_a_grid():
    func = pair(grid=16)["k"].with_attrs(grid=(16, 1, 8))
    assert launched_grid(func, (16, 1, 8)) == (16, 1, 8)
    assert launched_grid(func.with_attrs(**{HOLDERS: (32, 9)}), (16, 1, 8)) == (16, 1, 10)
    assert launched_grid(func.with_attrs(**{HOLDERS: (3, 9)}), (112, 1, 1)) == (115, 1, 1)
    releasing = func.with_body(func.body.with_ops((Op(RELEASE), *func.body.ops)))
    assert not list(holder_faults(releasing.with_attrs(**{HOLDERS: (32, 9)})))
    (fault,) = holder_faults(releasing.with_attrs(**{HOLDERS: (8, 9)}))
    assert fault == "expected holders in whole slices of 16 blocks, got 8"
    (fault,) = holder_faults(releasing.with_attrs(**{HOLDERS: (-1, 9)}))
    assert fault == "expected holders = [blocks, cycles], got (-1, 9)"
    (fault,) = holder_faults(func.with_attrs(**{HOLDERS: (16, 9)}))
    assert fault == "expected no holders in a kernel that releases nothing"
    assert without_release(releasing.with_attrs(**{HOLDERS: (32, 9)})).get(HOLDERS) is None


def test_blocks_that_hold_places_do_nothing_else():
    func = pair(grid=16)["k"].with_attrs(grid=(16, 1, 8), **{HOLDERS: (16, 900)})
    releasing = func.with_body(func.body.with_ops((Op(RELEASE), *func.body.ops)))
    source = emit_cuda(releasing)
    assert source.grid == (16, 1, 9)
    assert "if (blockIdx.z >= 8) {" in source.source
    assert "tw_stay(900);" in source.source
    assert emit_cuda(releasing, stamps=True).grid == (16, 1, 8)


def test_two_blocks_have_room_behind_many_and_a_third_has_none(lowered):
    low = lowered["auto"]
    plan, gpu = build(low, progress=False), low.target.hardware
    assert with_room_for_two(plan, gpu) is plan  # each has at most a block per multiprocessor
    first, second, *others = plan.launches
    small = replace(second, shared_bytes=8192, cluster=(1, 1, 1))
    many = plan.replace(launches=(replace(first, grid=(400, 1, 1)), small, *others))
    settled = with_room_for_two(many, gpu)
    assert with_room_for_two(settled, gpu) is settled
    (grown,) = (x for x, y in zip(settled.launches, many.launches, strict=True) if x != y)
    assert (grown.kernel, starts_early(settled, grown)) == (small.kernel, True)
    takes = footprint(settled, grown).shared_bytes + gpu.smem_reserved_per_block_bytes
    assert 2 * takes <= gpu.smem_per_sm_bytes < 3 * takes
    spread = many.replace(launches=tuple(replace(x, stream=i % 2) for i, x in enumerate(many.launches)))
    assert with_room_for_two(spread, gpu) is spread


def row_of_steps(steps):
    """So many launches of a small kernel, and one behind them that takes all of a GPU."""
    calls = "".join(
        f"%{i} = tensor.call({f'%{i - 1}' if i else '%x'}, callee = @k) : f32[128]\n" for i in range(steps)
    )
    small = pair(block=128)["k"]
    large = replace(pair(block=1024, grid=133)["k"], name="large")
    main = parse(f"""module @m {{
      tensor.func @main(%x: f32[128]) -> f32[1024] {{
        {calls}
        %y = tensor.call(%{steps - 1}, callee = @large) : f32[1024]
        tensor.return(%y)
      }}
      tensor.func @k(%x: f32[128]) -> f32[128] {{ tensor.return(%x) }}
      tensor.func @large(%x: f32[128]) -> f32[1024] {{
        %0 = tensor.map(%x, par = (i: 1024), reads = [[0]]) : f32[1024] {{ ^(%a: f32) scalar.yield(%a) }}
        tensor.return(%0)
      }}
    }}""").main
    return pair().with_funcs((main, small, large))


def test_a_twin_runs_before_what_does_not_fit():
    out = run_pipeline(row_of_steps(40), Pipeline.parse("relay-launches"), PassContext("cuda:sm_90a"))
    assert run_pipeline(out, Pipeline.parse("relay-launches"), PassContext("cuda:sm_90a")) is out
    called = [op["callee"].name for op in out.main.body.ops[:-1]]
    assert called == ["k"] * 39 + ["k_alone_0", "large"]
    assert [releases_dependents(out[n]) for n in ("k", "k_alone_0", "large")] == [True, False, False]


def test_no_twin_is_compiled_for_little():
    given = row_of_steps(2)
    out = run_pipeline(given, Pipeline.parse("relay-launches"), PassContext("cuda:sm_90a"))
    assert [f.name for f in out.funcs] == [f.name for f in given.funcs]
    assert not releases_dependents(out["k"])


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    return network(tmp_path_factory.mktemp("relays"), COLD)


@pytest.fixture(scope="module")
def lowered(cold):
    target = resolve_target(TARGET)
    return {when: lower(cold, target, precision="fp16", relays=when) for when in ("auto", "never")}


def products(low):
    funcs = [f for f in low.thread.funcs if f.name != "main"]
    return [f for f in funcs if weight_bytes(f).total > 1 << 20]


def test_weights_are_on_their_way_before_the_wait(lowered):
    for f in products(lowered["auto"]):
        assert releases_dependents(f) or f is products(lowered["auto"])[-1]
    early = [weight_bytes(f) for f in products(lowered["auto"])[1:]]
    late = [weight_bytes(f) for f in products(lowered["never"])[1:]]
    assert len(early) == len(late) >= 2
    assert all(w.exposed == 0 for w in early)
    assert all(w.exposed > w.total // 2 for w in late)
    # nothing that other launches write is touched before the wait, and prefetches of late starters are gone
    assert not any(
        op["early"] for f in products(lowered["never"]) for op in walk(f.body) if op.name == PREFETCH
    )


def test_every_line_of_the_weights_is_asked_for_before_the_wait(lowered):
    for f in products(lowered["auto"])[1:]:
        wait = next(i for i, op in enumerate(f.body.ops) if op.name == WAIT)
        early = [lines_asked_for(f, f.body.ops[:wait], name, f.params[1]) for name in PLACES]
        assert set().union(*early) == all_lines(f.params[1])


def test_compiled_plans_say_it_and_registers_count(lowered):
    low = lowered["auto"]
    plan = build(low, progress=False)
    assert any(k.releases for k in plan.kernels)
    assert sum(starts_early(plan, x) for x in plan.launches) == sum(
        plan.kernel_by_name[x.kernel].releases for x in plan.launches[:-1]
    )
    assert plan_from_json(plan_to_json(plan), binaries={k.name: k.binary for k in plan.kernels}) == plan
    unchanged, settled = settled_relays(low, plan)
    assert unchanged is low
    assert settled == with_room_for_two(plan, low.target.hardware)

    name = next(k.name for k in plan.kernels if k.releases)
    wide = tuple(
        replace(k, resources=KernelResources(255, 0, 0)) if k.name == name else k for k in plan.kernels
    )
    crowded = plan.replace(kernels=wide)  # 255 registers of 256 threads: all of a multiprocessor
    assert unfit_relays(crowded, low.target.hardware) >= {name}
    changed, settled = settled_relays(low, crowded)
    assert not settled.kernel_by_name[name].releases
    assert not releases_dependents(changed.thread[name])
    assert all(settled.kernel_by_name[n].source == source.source for n, source in changed.sources.items())
    started = {x.kernel for x in settled.launches if starts_early(settled, x)}
    assert len(started) < len(settled.kernels) - 1
    for f in products(changed):
        early = [op for op in walk(f.body) if op.name == PREFETCH and op["early"]]
        assert bool(early) == (f.name in started)


def test_launches_on_several_streams_are_no_relays(lowered):
    low = lowered["auto"]
    plan = build(low, progress=False)
    first, *rest = plan.launches
    spread = plan.replace(launches=(first, *(replace(x, stream=1) for x in rest)))
    assert unfit_relays(spread, low.target.hardware) == {k.name for k in plan.kernels if k.releases}
    assert not unfit_relays(spread, low.target.hardware, timed=True)


def test_relays_count_for_the_choice_of_streams(lowered):
    low = lowered["auto"]
    plan, gpu = build(low, progress=False, placed=False), low.target.hardware
    saved_s = relays_saving_s(plan, gpu)
    assert saved_s == pytest.approx((len(plan.launches) - 1) * gpu.relay.boundary_s)
    work = work_of(plan, kernel_costs(low.records), gpu)
    seconds = [
        choose_streams(plan, "model", work, constants={}, device=None, relays_s=s).seconds["serial"]
        for s in (0.0, saved_s)
    ]
    assert seconds[0] - seconds[1] == pytest.approx(saved_s)


def test_all_kernels_of_a_plan_of_relays_prefer_the_same_carve_out():
    calls = []
    keys = types.SimpleNamespace(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT=9)
    context = types.SimpleNamespace(
        api=types.SimpleNamespace(CUfunction_attribute=keys),
        call=lambda *arguments, doing: calls.append(arguments),
    )
    plan = diamond(language="cuda", arch="sm_90")
    keep_carve_out(context, plan, [1, 2, 3])
    few = tuple(replace(k, overlaps=True, releases=k.name == "shift") for k in plan.kernels)
    assert [launch.kernel == "shift" for launch in plan.launches].count(True) == 1 < len(plan.launches) / 2
    keep_carve_out(context, plan.replace(kernels=few), [1, 2, 3])
    assert calls == []
    kernels = tuple(
        replace(k, overlaps=True, releases=True, resources=KernelResources(32, 0, 20_000))
        for k in plan.kernels
    )
    keep_carve_out(context, plan.replace(kernels=kernels), [1, 2, 3])
    assert calls == [("cuFuncSetAttribute", function, 9, CARVE_OUT_PERCENT) for function in (1, 2, 3)]


def test_a_kernel_that_does_not_wait_must_not_release():
    plan = diamond()
    odd = plan.replace(kernels=(replace(plan.kernels[0], releases=True), *plan.kernels[1:]))
    assert any("to wait itself" in fault for fault in find_faults(odd))
    odd = plan.replace(kernels=(replace(plan.kernels[0], releases=1), *plan.kernels[1:]))
    assert any("expected releases to be true or false" in fault for fault in find_faults(odd))
    text = plan_to_json(plan)
    assert "releases" not in text  # what earlier versions read stays as it was
    with pytest.raises(InputError, match="expected releases to be of type bool"):
        plan_from_json(text.replace('"overlaps": false', '"overlaps": false, "releases": 1', 1))


NETWORK = """#[version = "0.0.5"]
def @main(%x: Tensor[(16, 96), float32], %a: Tensor[(128, 96), float32], %b: Tensor[(64, 128), float32]) {
  %0 = nn.relu(nn.dense(%x, %a, units=128));
  nn.softmax(nn.dense(%0, %b, units=64))
}
"""


@pytest.mark.emulator
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_relays_change_no_bit(tmp_path, precision):
    module = network(tmp_path, NETWORK)
    x = np.random.default_rng(0).standard_normal((16, 96)).astype(np.float32)
    results = {}
    for when in ("never", "auto", "always"):
        options = {"precision": precision, "relays": when, "progress": False}
        with tw.compile(module, target="emulator:sm_90a", **options) as exe:
            results[when] = exe(x)[0]
            text = json.dumps([k.source for k in exe.plan.kernels])
            early = len(exe.plan.launches) - 1 if when != "never" else 0
            assert exe.report()["relays"] == {"choice": when, "early": early}
            assert ("tw_release_dependents" in text) == (when != "never")
    np.testing.assert_array_equal(results["auto"], results["never"])
    np.testing.assert_array_equal(results["always"], results["never"])
    with pytest.raises(InputError, match="expected relays among auto, always, never"):
        tw.compile(module, target="emulator:sm_90a", relays="often")


def test_registers_of_kernels_by_roles_are_known_before_they_are_compiled():
    """Registers that roles pass on are all that the block has at launch: nothing fits beside."""
    func = parse("""module @m {
      thread.func @k(%x: f32[128], grid = [132, 1, 1], block = 256) {
        thread.role(name = "copy", warps = 4, registers = 40) { thread.yield() }
        thread.role(name = "multiply", warps = 4, registers = 232) { thread.yield() }
        thread.return()
      }
    }""").funcs[0]
    assert known_registers(func) == launch_registers(func) == 256 * 256
    body = func.body.with_ops(tuple(op.with_attrs(registers=0) if op.body else op for op in func.body.ops))
    assert known_registers(func.with_body(body)) == 0
