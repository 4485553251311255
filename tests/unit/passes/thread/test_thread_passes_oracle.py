"""The interpreter of thread-level kernels finds what it must: an oracle that accepts all proves nothing."""

from contextlib import nullcontext

import numpy as np
import pytest
from thread_interpreter import KernelFault, run_kernel
from thread_kernels import kernel, outputs

ROTATE = """
    %s = thread.alloc() : f32[8] in shared
    %a = thread.load(%x, at = [tid]) : f32
    thread.store(%a, %s, at = [tid])
    {barrier}
    %b = thread.load(%s, at = [(tid + 1) % 8]) : f32
    thread.store(%b, %y, at = [tid])"""
PARAMS = "%x: f32[8], %y: f32[8]"


def test_shared_memory_and_barriers():
    x, y = outputs(kernel(ROTATE.format(barrier="thread.barrier()"), PARAMS))
    np.testing.assert_array_equal(y, np.roll(x, -1))


def test_a_missing_barrier_is_a_race():
    with pytest.raises(KernelFault, match="threads 0 and 1 race on element 1"):
        outputs(kernel(ROTATE.format(barrier=""), PARAMS))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("thread.store(%a, %s, at = [0])", "race on element 0"),  # two writers
        ("thread.store(%a, %s, at = [tid]) thread.store(%a, %s, at = [(tid + 1) % 8])", "race"),
        ("thread.store(%a, %s, at = [tid + 1])", "leaves dimension 0"),
        ("%v = scalar.broadcast(%a, lanes = 2) : f32x2 thread.store(%v, %s, at = [1])", "not aligned"),
        ("thread.if(mask = [[tid, 0, 4]]) { thread.barrier() }", "only some threads"),
        ("%b = thread.load(%s, at = [tid]) : f32 thread.store(%b, %s, at = [(tid + 1) % 8])", "race"),
    ],
)
def test_faults(body, message):
    head = "%s = thread.alloc() : f32[8] in shared %a = thread.load(%x, at = [tid]) : f32\n"
    with pytest.raises(KernelFault, match=message):
        outputs(kernel(head + body, PARAMS))


def test_asynchronous_copies_need_a_wait_and_a_barrier():
    copy = """%s = thread.alloc() : f32[8] in shared
        thread.copy_async(%x, %s, src = [tid], dst = [tid])
        {after}
        %b = thread.load(%s, at = [7 - tid]) : f32
        thread.store(%b, %y, at = [tid])"""
    wait = "thread.async_commit() thread.async_wait()"
    x, y = outputs(kernel(copy.format(after=f"{wait} thread.barrier()"), PARAMS))
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(KernelFault, match="unfinished"):
        outputs(kernel(copy.format(after="thread.barrier()"), PARAMS))
    with pytest.raises(KernelFault, match="race"):
        outputs(kernel(copy.format(after=wait), PARAMS))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("thread.store(%a, %s, at = [min(tid, 8 - bid.x)])", "threads 6 and 7 race on element 6"),
        ("thread.store(%a, %s, at = [tid + bid.x // 2])", r"\[0, 8\] leaves dimension 0"),
        ("thread.if(mask = [[tid + bid.x, 0, 9]]) { thread.barrier() }", "only some threads"),
        ("thread.if(mask = [[bid.x, 0, 2]]) { thread.barrier() }", None),
        (
            "thread.store(%a, %s, at = [tid])"
            "thread.if(mask = [[bid.x, 0, 2]]) { thread.barrier() }"
            "%b = thread.load(%s, at = [7 - tid]) : f32",
            "threads 0 and 7 race on element 7",
        ),
    ],
    ids=["race", "outside", "barrier of some threads", "barrier of some blocks", "no barrier in one block"],
)
def test_faults_of_the_last_of_three_blocks_alone(body, message):
    """Blocks advance together, but each has shared memory and barriers of its own."""
    head = "%s = thread.alloc() : f32[8] in shared %a = thread.load(%x, at = [tid]) : f32\n"
    func = kernel(head + body, PARAMS, grid="[3, 1, 1]")
    with pytest.raises(KernelFault, match=message) if message else nullcontext():
        outputs(func)


def test_copies_that_only_some_blocks_wait_for():
    body = """%s = thread.alloc() : f32[8] in shared
        thread.copy_async(%x, %s, src = [tid], dst = [tid])
        thread.if(mask = [[bid.x, 0, LAST]]) { thread.async_commit() thread.async_wait() thread.barrier() }
        %b = thread.load(%s, at = [7 - tid]) : f32
        thread.store(%b, %y, at = [tid])"""
    x, y = outputs(kernel(body.replace("LAST", "2"), PARAMS, grid="[2, 1, 1]"))
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(KernelFault, match="unfinished"):
        outputs(kernel(body.replace("LAST", "1"), PARAMS, grid="[2, 1, 1]"))


def test_loops_masks_grids_and_shuffles():
    func = kernel(
        """
        %zero = scalar.const(value = 0.0, dtype = "f32") : f32
        %sum = thread.loop(%zero, var = i, extent = 3) : f32 {
            ^(%acc: f32)
            %a = thread.load(%x, at = [8 * bid.x + tid + i],
                mask = [[8 * bid.x + tid + i, 0, 16]], other = 1.0) : f32
            %n = scalar.add(%acc, %a) : f32
            thread.yield(%n)
        }
        %other = thread.shuffle(%sum, kind = "xor", offset = 1) : f32
        thread.store(%other, %y, at = [8 * bid.x + tid])""",
        "%x: f32[16], %y: f32[16]",
        grid="[2, 1, 1]",
    )
    x, y = outputs(func)
    padded = np.concatenate([x, np.ones(2, np.float32)])
    sums = (padded[:-2] + padded[1:-1]) + padded[2:]
    np.testing.assert_array_equal(y, sums.reshape(8, 2)[:, ::-1].reshape(16))


def test_arguments_are_copied():
    func = kernel("%a = thread.load(%x, at = [tid]) : f32 thread.store(%a, %y, at = [tid])", PARAMS)
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    assert run_kernel(func, x, y)[1].sum() == 8
    assert y.sum() == 0
