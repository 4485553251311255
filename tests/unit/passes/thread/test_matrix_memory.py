"""Shared memory of tensor-core kernels: copies in flight, barriers that are checked, bytes, swizzles."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import kernel as thread_kernel
from decision_samples import with_template
from matrix_samples import THREAD, lowered, matrix_parameters, product
from thread_kernels import CTX, kernel

from tilewright.ir import Block, Func, InputError, Module, TensorType, UnsupportedError, walk
from tilewright.ir.expr import Sym
from tilewright.ir.simplify import simplify
from tilewright.ir.thread.shared_layout import shared_layout, swizzled_column
from tilewright.measuring.kernel_program import kernel_program
from tilewright.passes import Pipeline, run_pipeline

GEMM = product("f16", ("64, 512", "64, 512"), "m: 64, n: 64", "c: 512", ("[m, c]", "[n, c]"))


def placed(func: Func) -> Func:
    return run_pipeline(Module("m", (func,)), Pipeline.parse("place-barriers"), CTX).funcs[0]


def edited(block: Block, change) -> Block:
    """The block with `change` (op to ops) applied everywhere."""
    ops = []
    for op in block.ops:
        op = op if op.body is None else replace(op, body=edited(op.body, change))
        ops += change(op)
    return block.with_ops(tuple(ops))


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_ring_of_copies_is_accepted(stages):
    func = lowered(GEMM, 64, 64, 32, 2, 2, stages)
    assert placed(func) is func


def test_a_ring_without_its_barriers_is_refused():
    func = lowered(GEMM, 64, 64, 32, 2, 2, 3)
    without = edited(func.body, lambda op: () if op.name == "thread.barrier" else (op,))
    with pytest.raises(InputError, match="expected a barrier between two uses"):
        placed(func.with_body(without))


@pytest.mark.parametrize("pending", [2, 3])
def test_a_ring_that_waits_too_little_is_refused(pending):
    func = lowered(GEMM, 64, 64, 32, 2, 2, 3)

    def lax(op):
        return (op.with_attrs(pending=pending) if op.name == "thread.async_wait" and op["pending"] else op,)

    with pytest.raises(InputError, match=r"thread\.async_wait"):
        placed(func.with_body(edited(func.body, lax)))


RING = """
  %s = thread.alloc() : f32[SLOTS, 8] in shared
  thread.copy_async(%x, %s, src = [tid], dst = [0, tid]) thread.async_commit()
  thread.loop(var = i, extent = 20) {
    thread.async_wait()
    thread.barrier()
    thread.copy_async(%x, %s, src = [tid], dst = [(i + 1) % SLOTS, tid]) thread.async_commit()
    %v = thread.load(%s, at = [i % SLOTS, 7 - tid]) : f32
    thread.store(%v, %y, at = [tid])
    thread.yield()
  }
"""


def test_a_ring_of_one_slot_is_refused():
    params = "%x: f32[64], %y: f32[64]"
    assert placed(kernel(RING.replace("SLOTS", "2"), params))
    with pytest.raises(InputError, match=r"thread\.async_wait"):
        placed(kernel(RING.replace("SLOTS", "1"), params))


def test_the_tile_of_sums_takes_the_bytes_of_the_ring():
    func = lowered(GEMM, 64, 64, 32, 2, 2, 4)
    layout = shared_layout(func)
    sizes = sorted(v.tensor.nbytes for v in layout.offsets)
    assert len(sizes) == 3
    assert layout.overlaps
    assert layout.nbytes == max(4 * 2 * 64 * 64, 4 * 64 * 72)
    fragments = [op for op in walk(func.body) if op.name == "thread.store_fragment"]
    assert len(fragments) == 1


def test_buffers_share_bytes_only_across_a_barrier():
    def body(barrier: str) -> str:
        return f"""
          %a = thread.alloc() : f32[32] in shared
          %b = thread.alloc() : f32[32] in shared
          %v = thread.load(%x, at = [tid]) : f32
          thread.store(%v, %a, at = [tid])
          %w = thread.load(%a, at = [tid]) : f32
          {barrier}
          thread.store(%w, %b, at = [tid])
          %u = thread.load(%b, at = [tid]) : f32
          thread.store(%u, %y, at = [tid])"""

    params = {"x": "f32[32]", "y": "f32[32]"}
    assert shared_layout(thread_kernel(body(""), params)).nbytes == 256
    assert shared_layout(thread_kernel(body("thread.barrier()"), params)).nbytes == 128


@pytest.mark.parametrize(
    ("dtype", "width"), [("f16", 16), ("f16", 32), ("f16", 64), ("bf16", 128), ("f32", 32)]
)
def test_swizzled_rows(dtype, width):
    """A permutation of 16-byte pieces; eight rows of one piece meet all banks; sectors stay together."""
    t = TensorType(dtype, (16, width), "shared")
    size = 2 if dtype != "f32" else 4
    piece = 16 // size
    column = swizzled_column(t, Sym("row"), Sym("column"))

    def at(row: int, c: int) -> int:
        found = simplify(column, {"row": (row, row), "column": (c, c)})
        assert isinstance(found, int)
        return found

    table = np.array([[at(row, c) for c in range(width)] for row in range(16)])
    assert np.array_equal(np.sort(table, axis=1), np.tile(np.arange(width), (16, 1)))
    assert np.array_equal(table[:, ::piece, None] + np.arange(piece), table.reshape(16, -1, piece))
    places = np.arange(16)[:, None] * width + table
    for first in (0, 8):
        for c in range(0, width, piece):
            banks = {int(p) * size // 16 % 8 for p in places[first : first + 8, c]}
            assert len(banks) == 8
    sectors = places.reshape(16, -1, 2 * piece) * size // 32
    assert np.all(sectors == sectors[..., :1])


def test_rows_that_cannot_be_swizzled():
    with pytest.raises(UnsupportedError, match="swizzled rows of 32, 64 or a multiple of 128 bytes"):
        swizzled_column(TensorType("f16", (8, 24), "shared"), 0, Sym("c") * 8)


def test_weights_are_on_their_way_before_the_wait_for_other_launches():
    """Of the copies before the loop, those of constants come first; all belong to the first group."""
    plan = matrix_parameters(64, 64, 32, 2, 2, 3)
    module = kernel_program(with_template(GEMM, "matrix", plan), {1})
    text = f"tensor-to-thread, {THREAD}, overlap-launches"
    ready = run_pipeline(module, Pipeline.parse(text), replace(CTX, target="cuda:sm_90a"))
    (func,) = (f for f in ready.funcs if f.name != "main")
    ops = func.body.ops
    wait = next(i for i, op in enumerate(ops) if op.name == "thread.wait_for_launches")
    loop = next(i for i, op in enumerate(ops) if op.name == "thread.loop" and op["var"].name == "chunk")
    assert copied(ops[:wait]) == {"w"}
    assert copied(ops[wait:loop]) == {"x"}


def copied(ops) -> set[str]:
    inside = [o for op in ops for o in ([op] if op.body is None else walk(op.body))]
    return {o.operands[0].hint for o in inside if o.name == "thread.copy_async"}
