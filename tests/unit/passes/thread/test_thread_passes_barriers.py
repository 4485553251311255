"""place-barriers: no race is left, no barrier too many, and none where threads may part."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thread_interpreter import KernelFault
from thread_kernels import CTX, after, count, kernel, outputs

from tilewright.ir import Block, Func, InputError, Module, Op, verify, walk
from tilewright.passes import Pipeline, find_invariant, run_pipeline

PARAMS = "%x: f32[64], %y: f32[64]"
SHARED = "%s = thread.alloc() : f32[64] in shared\n"


def load(at: str, buffer: str = "s", name: str = "b") -> str:
    return f"%{name} = thread.load(%{buffer}, at = [{at}]) : f32\n"


def store(at: str, buffer: str = "s", value: str = "a") -> str:
    return f"thread.store(%{value}, %{buffer}, at = [{at}])\n"


HEAD = SHARED + load("tid", "x", "a")
WRITE, TURNED, OUT = store("tid"), load("7 - tid"), store("tid", "y", "b")
LATER = store("8 * i + tid", "y", "b")


def loop(var: str, extent: int, *body: str) -> str:
    return f"thread.loop(var = {var}, extent = {extent}) {{ {''.join(body)} }}\n"


def tree_step(n: int) -> str:
    sums = f"%r{n} = scalar.add(%p{n}, %q{n}) : f32\n"
    inside = load("tid", name=f"p{n}") + load(f"tid + {n}", name=f"q{n}") + sums + store("tid", value=f"r{n}")
    return f"thread.if(mask = [[tid, 0, {n}]]) {{ {inside} }}\n"


#: parts of the body, number of barriers
KERNELS: dict[str, tuple[list[str], int]] = {
    "own element": ([HEAD, WRITE, load("tid"), OUT], 0),
    "own row": ([HEAD, store("4 * tid + 1"), load("4 * tid + 1"), OUT], 0),
    "apart": ([HEAD, WRITE, load("tid + 8"), OUT], 0),
    "neighbour": ([HEAD, WRITE, load("(tid + 1) % 8"), OUT], 1),
    "two readers, one barrier": (
        [HEAD, WRITE, TURNED, load("0", name="c"), OUT, store("tid + 8", "y", "c")],
        1,
    ),
    "two writes, two reads, one barrier": (
        [HEAD, WRITE, store("tid + 8"), TURNED, load("8", name="c"), OUT],
        1,
    ),
    "read, then overwrite": (
        [HEAD, WRITE, TURNED, store("tid", value="b"), load("7 - tid", name="c"), store("tid", "y", "c")],
        3,
    ),
    "existing barriers count": ([HEAD, WRITE, "thread.barrier()\n", TURNED, OUT], 1),
    "tile loop": (
        [HEAD, loop("i", 3, load("8 * i + tid", "x", "c"), store("tid", value="c"), TURNED, LATER)],
        2,
    ),
    "written once, read in a loop": ([HEAD, WRITE, loop("i", 3, load("(tid + i) % 8"), LATER)], 1),
    "written in a loop, read after it": (
        [HEAD, loop("i", 3, store("8 * i + tid")), load("23 - tid"), OUT],
        1,
    ),
    "nested loops": (
        [HEAD, loop("k", 2, WRITE, loop("i", 3, load("(tid + i) % 8"), LATER))],
        2,
    ),
    "one writes, all read it under the same name": (
        [HEAD, "thread.if(mask = [[tid, 0, 1]]) {", store("tid // 8"), "}", load("tid // 8"), OUT],
        1,
    ),
    "reduction tree": ([HEAD, WRITE, *map(tree_step, (4, 2, 1)), load("0"), OUT], 4),
    "registers": (
        ["%s = thread.alloc() : f32[64] in reg\n", load("tid", "x", "a"), store("0"), load("0"), OUT],
        0,
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_no_race_is_left_and_no_barrier_is_too_many(name):
    parts, barriers = KERNELS[name]
    func = kernel("".join(parts), PARAMS)
    new = after("place-barriers", func)
    assert count(new, "thread.barrier") == barriers
    outputs(new)  # the interpreter refuses races
    assert after("place-barriers", new) is new
    for fewer in without_one_barrier(new):
        with pytest.raises(KernelFault, match="race"):
            outputs(fewer)
        assert find_invariant("barriers-placed")(Module("m", (fewer,))) == ["@k needs a barrier"]
    assert find_invariant("barriers-placed")(Module("m", (new,))) == []


def without_one_barrier(func: Func) -> list[Func]:
    """The kernel without each of its barriers in turn."""
    return [func.with_body(b) for b in _dropped(func.body)]


def _dropped(block: Block) -> list[Block]:
    found = []
    for i, op in enumerate(block.ops):
        rest = (block.ops[:i], block.ops[i + 1 :])
        if op.name == "thread.barrier":
            found.append(block.with_ops((*rest[0], *rest[1])))
        if op.body is not None:
            found += [block.with_ops((*rest[0], replace(op, body=b), *rest[1])) for b in _dropped(op.body)]
    return found


def test_a_block_of_one_thread_needs_no_barrier():
    func = kernel(HEAD + WRITE + load("0") + OUT, PARAMS, block=1)
    assert after("place-barriers", func) is func


def place(func: Func) -> Module:
    return run_pipeline(Module("m", (func,)), Pipeline.parse("place-barriers"), CTX)


def test_a_hazard_where_threads_part_is_refused():
    body = (
        HEAD
        + "thread.if(mask = [[tid, 0, 4]]) {"
        + store("tid")
        + load("3 - tid")
        + store("tid", "y", "b")
        + "}"
    )
    with pytest.raises(InputError, match="hazard inside a condition"):
        place(kernel(body, PARAMS))


def test_asynchronous_copies_need_a_wait():
    copy = SHARED + "thread.copy_async(%x, %s, src = [tid], dst = [tid])\n"
    read = TURNED + OUT
    with pytest.raises(InputError, match=r"expected thread\.async_wait"):
        place(kernel(copy + read, PARAMS))
    waited = kernel(copy + "thread.async_commit() thread.async_wait()\n" + read, PARAMS)
    new = place(waited)["k"]
    assert count(new, "thread.barrier") == 1
    outputs(new)


ACCESS = st.tuples(
    st.booleans(),
    st.sampled_from(["tid", "7 - tid", "(tid + 3) % 8", "tid + 8", "8 + (tid + 1) % 8", "0", "i + tid"]),
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Accesses to shared memory, some in a loop; writes that all threads make to one element are left out."""
    lines = [HEAD, "thread.loop(var = f, extent = 8) {" + store("8 * tid + f") + "}\nthread.barrier()\n"]
    depth = 0
    for n, (write, at) in enumerate(draw(st.lists(ACCESS, min_size=2, max_size=9))):
        if depth == 0 and draw(st.integers(0, 3)) == 0:
            lines.append(f"thread.loop(var = i, extent = {draw(st.integers(2, 3))}) {{\n")
            depth = 1
        at = at.replace("i + tid", "i + tid" if depth else "tid")
        if write and at != "0":
            lines.append(store(at))
        else:
            lines.append(load(at, name=f"v{n}") + store("tid", "y", f"v{n}"))
        if depth and draw(st.integers(0, 2)) == 0:
            lines.append("}\n")
            depth = 0
    return "".join(lines) + "}" * depth


@given(programs())
def test_random_programs_are_free_of_races(body):
    func = kernel(body, PARAMS)
    new = after("place-barriers", func)
    outputs(new)
    assert after("place-barriers", new) is new


OWN = """
  %own = thread.alloc() : f32[4, 32] in shared
  %sums = thread.alloc() : f32[4, 32] in shared
  thread.role(name = "all") {
    thread.loop(var = i, extent = 2) {
      %0 = thread.load(%x, at = [i, tid]) : f32
      thread.store(%0, %sums, at = [tid // 32, tid % 32])
      thread.store(%0, %own, at = [tid // 32, tid % 32])
      %1 = thread.load(%own, at = [tid // 32, 31 - tid % 32]) : f32
      %2 = thread.load(%sums, at = [READ, tid % 32]) : f32
      %3 = scalar.add(%1, %2) : f32
      thread.store(%3, %y, at = [i, tid])
    }
  }
"""


@pytest.mark.parametrize(
    ("read", "barriers"),
    [
        # all is private to warps: before %own is read, which holds for %sums as well, and before the writes
        ("tid // 32", ["warp_barrier", "warp_barrier"]),
        # every write names the own warp first, but another one reads, which no barrier of a warp orders
        ("3 - tid // 32", ["warp_barrier", "barrier", "barrier"]),
    ],
)
def test_a_barrier_of_a_warp_orders_only_what_is_private_to_warps(read, barriers):
    func = kernel(OWN.replace("READ", read), "%x: f32[2, 128], %y: f32[2, 128]", block=128)
    new = after("place-barriers", func)
    names = [op.name.removeprefix("thread.") for op in walk(new.body)]
    assert [name for name in names if "barrier" in name] == barriers
    assert after("place-barriers", new) is new


def test_roles_share_only_what_a_channel_keeps_in_order():
    """Barriers of a role do not order what another role does."""
    role = OWN[OWN.index("  thread.role") :].replace('"all"', '"others"')
    role = re.sub(r"%(\d)", r"%o\1", role)
    both = kernel((OWN + role).replace("READ", "tid // 32"), "%x: f32[2, 128], %y: f32[2, 128]", block=256)
    with pytest.raises(InputError, match=r"expected one role to use %sums, .* got all and others"):
        place(both)


def test_barriers_never_stand_side_by_side():
    func = kernel("".join(KERNELS["nested loops"][0]), PARAMS)
    new = after("place-barriers", func)
    verify(Module("m", (new,)))

    def check(ops: tuple[Op, ...]) -> None:
        assert not any(a.name == b.name == "thread.barrier" for a, b in pairwise(ops))
        for op in ops:
            check(op.body.ops if op.body is not None else ())

    check(new.body.ops)
