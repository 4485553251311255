"""Results in place of operands: which kernels allow it, which buffers take it, and that values stay right."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_builder import Net

import tilewright as tw
from tilewright.codegen.emit.in_place import in_place_pairs
from tilewright.runtime.arena.in_place import places_of
from tilewright.runtime.arena.placement import layout_of, place_arena
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch
from tilewright.runtime.plan.hazards import find_hazards
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json

KERNEL = """
module @net {{
  thread.func @k(%x: {t}, %w: {t}, %y: {t}, grid = [{grid}, 1, 1], block = 16, {attrs}) {{
    thread.wait_for_launches()
{body}
    thread.return()
  }}
}}
"""
SUM = """
    thread.loop(var = i, extent = 2, unroll = 1) {
      %a = thread.load(%x, at = [bid.x, i * 32 + tid * 2], lanes = 2) : f32x2
      %b = thread.load(%w, at = [0, 0], lanes = 2) : f32x2
      %c = scalar.add(%a, %b) : f32x2
      thread.store(%c, %y, at = [bid.x, i * 32 + tid * 2])
    }"""


def pairs(body: str, *, grid: int = 8, attrs: str = "constant_params = []") -> tuple[tuple[int, int], ...]:
    module = tw.parse(KERNEL.format(body=body, grid=grid, attrs=attrs, t="f32[8, 64]"))
    tw.verify(module)
    return in_place_pairs(module.funcs[0])


def test_an_operand_read_where_it_is_written_later_may_be_overwritten():
    assert pairs(SUM) == ((0, 2),)
    assert pairs(SUM.replace("%w, at = [0, 0]", "%w, at = [bid.x, i * 32 + tid * 2]")) == ((0, 2), (1, 2))


def test_loads_may_be_in_an_earlier_loop_with_another_variable():
    assert pairs(
        """
    %kept = thread.alloc() : f32[2] in reg
    thread.loop(var = i, extent = 2, unroll = 1) {
      %a = thread.load(%x, at = [bid.x, i * 32 + tid]) : f32
      thread.store(%a, %kept, at = [i])
    }
    thread.loop(var = j, extent = 2, unroll = 1) {
      thread.loop(var = k, extent = 2, unroll = 1) {
        %b = thread.load(%w, at = [bid.x, j * 32 + k * 16 + tid]) : f32
        thread.store(%b, %y, at = [bid.x, j * 32 + k * 16 + tid])
      }
    }"""
    ) == ((1, 2),)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%x, at = [bid.x, i * 32 + tid * 2]", "%x, at = [bid.x, 32 - i * 32 + tid * 2]"),  # another element
        ("%y, at = [bid.x, i * 32 + tid * 2])", "%y, at = [bid.x, i * 32 + tid * 2], mask = [[tid, 0, 8]])"),
        (", lanes = 2) : f32x2\n      %b", ", lanes = 2, mask = [[tid, 0, 8]]) : f32x2\n      %b"),
        (
            "      %c =",
            "      %d = thread.load(%x, at = [0, 0], lanes = 2) : f32x2\n      %c =",
        ),  # read again
        ("      %c =", "      thread.store(%b, %y, at = [bid.x, 0])\n      %c ="),  # written twice
    ],
)
def test_other_reads_and_writes_forbid_it(old, new):
    assert old in SUM
    assert pairs(SUM.replace(old, new)) == ()


def test_a_store_that_runs_too_often_or_before_the_load_forbids_it():
    assert pairs(SUM, grid=9) == ()
    late = SUM.replace("thread.store(%c, %y", "thread.store(%b, %y")
    lines = late.splitlines()
    load = next(line for line in lines if "%x" in line)
    add = next(line for line in lines if "scalar.add" in line)
    kept = [line for line in lines if line not in (load, add)]
    store = next(i for i, line in enumerate(kept) if "thread.store" in line)
    assert pairs("\n".join([*kept[: store + 1], load, *kept[store + 1 :]])) == ()


#: the last block of rows is cut: whole blocks and the last one have loads and stores of their own
CUT = """
    thread.if(mask = [[bid.x // 2 * 3, 0, 6]]) {
      thread.loop(var = i, extent = 3, unroll = 1) {
        %a = thread.load(%x, at = [bid.x // 2 * 3 + i, bid.x % 2 * 32 + tid * 2], lanes = 2) : f32x2
        thread.store(%a, %y, at = [bid.x // 2 * 3 + i, bid.x % 2 * 32 + tid * 2])
      }
    }
    thread.if(mask = [[bid.x // 2 * 3, 6, 9]]) {
      thread.loop(var = j, extent = 3, unroll = 1) {
        thread.if(mask = [[bid.x // 2 * 3 + j, 0, 8]]) {
          %b = thread.load(%x, at = [bid.x // 2 * 3 + j, bid.x % 2 * 32 + tid * 2], lanes = 2) : f32x2
          thread.store(%b, %y, at = [bid.x // 2 * 3 + j, bid.x % 2 * 32 + tid * 2])
        }
      }
    }"""


def test_blocks_that_reach_beyond_the_result_may_overwrite_an_operand():
    assert pairs(CUT, grid=6) == ((0, 2),)


def test_blocks_may_be_numbered_in_groups_of_rows():
    """Two rows of blocks of one column, then the same of the next column: digits of digits."""
    rows, columns = "(bid.x // 4 * 2 + bid.x % 4 % 2) * 2", "bid.x % 4 // 2 * 32"
    grouped = CUT.replace("bid.x // 2 * 3", rows).replace("bid.x % 2 * 32", columns)
    for old, new in (("0, 6]", "0, 5]"), ("6, 9]", "5, 8]"), ("extent = 3", "extent = 2")):
        grouped = grouped.replace(old, new)
    assert pairs(grouped, grid=8) == ((0, 2),)
    assert pairs(grouped.replace("% 4 % 2", "% 2"), grid=8) == ()  # two ways to divide one number


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[bid.x // 2 * 3, 6, 9]", "[bid.x // 2 * 3, 5, 9]"),  # threads run both branches
        ("bid.x % 2 * 32 + tid", "bid.x % 2 * 16 + tid"),  # blocks share columns
        ("bid.x // 2 * 3 + j, bid.x % 2 * 32 + tid * 2], lanes", "j, tid * 2], lanes"),  # another element
        ("bid.x % 2 * 32", "bid.x % 4 * 32"),  # quotient and remainder of different divisors
    ],
)
def test_blocks_that_touch_elements_of_others_may_not(old, new):
    assert old in CUT
    assert pairs(CUT.replace(old, new), grid=6) == ()


def test_text_that_promises_apart_pointers_forbids_it():
    assert pairs(SUM, attrs="constant_params = [0]") == ()


def sums(count: int, output: str, in_place: tuple[tuple[int, int], ...] = ((0, 2),)) -> ExecutionPlan:
    """t0 from x, then each t(i+1) from t(i) and x; the chain may be overwritten all along."""
    buffers = [Buffer("x", "uint8", (256,), "input", 256)]
    buffers += [Buffer(f"t{i}", "uint8", (256,), "arena", 256) for i in range(count)]
    launches = [Launch("k", ("x", "t0"), (1, 1, 1), 1, writes=(1,))]
    for i in range(1, count):
        args = (f"t{i - 1}", "x", f"t{i}")
        launches.append(Launch("k", args, (1, 1, 1), 1, deps=(i - 1,), writes=(2,), in_place=in_place))
    kernel = KernelCode("k", "k", "opencl", "")
    return ExecutionPlan("test", tuple(buffers), (kernel,), tuple(launches), ("x",), (output,), 0)


def test_a_chain_takes_one_place_but_never_that_of_an_output():
    plan = validate(place_arena(sums(5, "t4")))
    assert plan.arena_bytes == layout_of(plan).lower_bound == 256
    assert find_hazards(plan) == []
    kept = place_arena(sums(5, "t2"))
    assert kept.arena_bytes == 512
    assert find_hazards(kept) == []
    assert place_arena(sums(5, "t4", ())).arena_bytes == 512


def test_the_check_wants_the_launch_to_allow_it():
    plan = place_arena(sums(3, "t2"))
    launches = list(plan.launches)
    launches[1] = replace(launches[1], in_place=())
    assert find_hazards(plan.replace(launches=tuple(launches))) == [
        "'t0' and 't1' share arena bytes, but their uses may interleave"
    ]
    shifted = tuple(replace(b, offset=128) if b.name == "t1" else b for b in plan.buffers)
    assert find_hazards(plan.replace(buffers=shifted)) != []


def test_a_reader_beside_keeps_the_operand():
    plan = sums(3, "t2")
    beside = Launch("k", ("t0", "x", "side"), (1, 1, 1), 1, deps=(0,), writes=(2,))
    side = Buffer("side", "uint8", (256,), "output", 256)
    wider = plan.replace(
        buffers=(*plan.buffers, side), launches=(*plan.launches, beside), outputs=("t2", "side")
    )
    assert places_of(wider)["t1"] == "t1"
    # Ordered before the launch that overwrites, it does not matter.
    first, second, third = plan.launches
    ordered = (first, beside, replace(second, deps=(0, 1)), replace(third, deps=(2,)))
    assert places_of(wider.replace(launches=ordered))["t1"] == "t0"


def test_of_two_results_one_takes_the_place():
    buffers = [Buffer(name, "uint8", (256,), "arena", 256) for name in ("a", "b", "c")]
    both = Launch("k", ("a", "b", "c"), (1, 1, 1), 1, deps=(0,), writes=(1, 2), in_place=((0, 1), (0, 2)))
    launches = (Launch("k", ("a",), (1, 1, 1), 1, writes=(0,)), both)
    kernel = KernelCode("k", "k", "opencl", "")
    plan = place_arena(ExecutionPlan("test", tuple(buffers), (kernel,), launches, (), ("b", "c"), 0))
    assert validate(plan).arena_bytes == 512
    assert find_hazards(plan) == []


def test_a_result_begun_earlier_overwrites_nothing():
    plan = sums(3, "t2")
    first, second, third = plan.launches
    begun = replace(first, args=("x", "t0", "t1"), writes=(1, 2))
    assert places_of(plan.replace(launches=(begun, second, third)))["t1"] == "t1"


def test_malformed_pairs_are_faults_and_pairs_survive_json():
    plan = place_arena(sums(3, "t2"))
    assert plan_from_json(plan_to_json(plan)) == plan
    with pytest.raises(InputError, match="'t0' and 't1' share arena bytes"):
        plan_from_json(plan_to_json(plan).replace("[[0, 2]]", "[]"))
    apart = place_arena(sums(3, "t2", ()))
    old = plan_to_json(apart).replace(', "in_place": []', "")
    assert "in_place" not in old
    assert all(not launch.in_place for launch in plan_from_json(old).launches)
    for bad in (((2, 2),), ((0, 1),), ((0, 3),), ((0, -1),)):
        with pytest.raises(InputError, match="in_place"):
            validate(place_arena(sums(3, "t2")).replace(launches=sums(3, "t2", bad).launches))
    with pytest.raises(InputError, match=r"expected in_place\[0\] to hold 2 values, got 1"):
        plan_from_json(plan_to_json(plan).replace("[[0, 2]]", "[[0]]"))


@st.composite
def overwriting_plans(draw) -> ExecutionPlan:
    """Launch i writes t(i) from earlier buffers and may overwrite any that are of its size."""
    count = draw(st.integers(2, 10))
    sizes = [256 * draw(st.integers(1, 2)) for _ in range(count)]
    buffers = [Buffer(f"t{i}", "uint8", (n,), "arena", n) for i, n in enumerate(sizes)]
    launches = []
    for i in range(count):
        read = sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else []
        more = draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set()
        args = (*(f"t{r}" for r in read), f"t{i}")
        allowed = tuple((p, len(read)) for p, r in enumerate(read) if sizes[r] == sizes[i])
        deps = tuple(sorted({*read, *more}))
        launches.append(Launch("k", args, (1, 1, 1), 1, deps=deps, writes=(len(read),), in_place=allowed))
    outputs = tuple(f"t{i}" for i in sorted(draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2))))
    kernel = KernelCode("k", "k", "opencl", "")
    return place_arena(ExecutionPlan("test", tuple(buffers), (kernel,), tuple(launches), (), outputs, 0))


@given(overwriting_plans(), st.randoms(use_true_random=False))
def test_no_allowed_order_reads_what_was_overwritten(plan, rng):
    validate(plan)
    assert find_hazards(plan) == []
    for _ in range(5):
        owner = [""] * plan.arena_bytes
        waiting = {i: set(launch.deps) for i, launch in enumerate(plan.launches)}
        while waiting:
            index = rng.choice(sorted(i for i, deps in waiting.items() if not deps))
            del waiting[index]
            for deps in waiting.values():
                deps.discard(index)
            launch = plan.launches[index]
            *read, written = (plan.buffer_by_name[name] for name in launch.args)
            for b in read:
                assert set(owner[b.offset : b.offset + b.nbytes]) == {b.name}
            owner[written.offset : written.offset + written.nbytes] = [written.name] * written.nbytes
        for name in plan.outputs:
            b = plan.buffer_by_name[name]
            assert set(owner[b.offset : b.offset + b.nbytes]) == {name}


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("side", "precision", "error"),
    [(16, "fp32", 1e-5), (9, "fp32", 1e-5), (9, "tf32", 5e-3)],  # 81 points cut blocks
)
def test_a_residual_network_overwrites_and_agrees_with_the_interpreter(side, precision, error):
    net = Net()

    def conv(x):
        return net("nn.conv2d({}, {}, channels=16, kernel_size=[1, 1])", x, net.weight(16, 16, 1, 1))

    x = net.input(1, 16, side, side)
    for _ in range(3):
        y = conv(x)
        x = net("add({}, {})", conv(conv(y)), y)
    module = net.module(x)
    inputs = list(net.inputs.values())
    with tw.compile(module, target="emulator:sm_90a", precision=precision) as exe:
        place = places_of(exe.plan)
        assert any(own != name for name, own in place.items())
        assert find_hazards(exe.plan) == []
        first, again = exe(*inputs), exe(*inputs)
    wanted = tw.interpret(module, *inputs)
    assert np.abs(first[0] - wanted[0]).max() <= error * np.abs(wanted[0]).max()
    np.testing.assert_array_equal(first[0], again[0])
