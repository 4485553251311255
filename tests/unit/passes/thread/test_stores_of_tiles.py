"""Stores of tiles by the copy engine: what they read is fenced before and waited for before it changes."""

from __future__ import annotations

import pytest

from tilewright.ir import InputError, Module, parse, walk
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.framework.context import PassContext

KERNEL = """module @m {
  thread.func @k(%x: f32[2, 32, 32], %y: f32[2, 32, 32], maps = [map<parameter: 1, dtype: "f32",
      dims: [2, 32, 32], strides: [4096, 128], box: [1, 32, 32], swizzle: 128>], grid = [1, 1, 1],
      block = 1024) {
    %tile = thread.alloc(swizzled = true, align = 1024) : f32[1, 32, 32] in shared
    thread.loop(var = i, extent = 2) {
      %0 = thread.load(%x, at = [i, tid // 32, tid % 32]) : f32
      thread.store(%0, %tile, at = [0, tid // 32, tid % 32])
      thread.fence_async_proxy()
      thread.barrier()
      thread.store_tile(%tile, %y, map = 0, src = [0, 0, 0], at = [i, 0, 0], tile = [1, 32, 32])
      thread.bulk_commit()
      thread.bulk_wait()
    }
    thread.return()
  }
}
"""


def placed(text: str) -> Module:
    return run_pipeline(parse(text), Pipeline.parse("place-barriers"), PassContext())


def test_threads_write_again_after_a_wait_and_a_barrier():
    (func,) = placed(KERNEL).funcs
    names = [op.name for op in walk(func.body)]
    assert names.count("thread.barrier") == 2
    assert names.index("thread.bulk_wait") < len(names) - 1 - names[::-1].index("thread.barrier")


@pytest.mark.parametrize(
    ("line", "clause"),
    [
        (
            "      thread.fence_async_proxy()\n",
            "expected thread.fence_async_proxy and a barrier .* asynchronous store",
        ),
        ("      thread.barrier()\n", "expected thread.fence_async_proxy and a barrier"),
        ("      thread.bulk_wait()\n", "expected thread.bulk_wait between a store of a tile and new values"),
        (
            "      thread.bulk_commit()\n",
            "expected thread.bulk_wait between a store of a tile and new values",
        ),
    ],
)
def test_each_step_that_is_left_out_is_named(line, clause):
    assert line in KERNEL
    with pytest.raises(InputError, match=clause):
        placed(KERNEL.replace(line, ""))


def test_a_role_stores_by_the_same_rules():
    role = KERNEL.replace(
        "    thread.loop(var = i", '    thread.role(name = "all", warps = 32) {\n    thread.loop(var = i'
    )
    role = role.replace("    thread.return()", "    }\n    thread.return()")
    assert sum(op.name == "thread.barrier" for op in walk(placed(role).funcs[0].body)) == 2
    with pytest.raises(InputError, match="asynchronous store"):
        placed(role.replace("      thread.fence_async_proxy()\n", ""))
