"""Weights that a kernel asks for before and after its wait, counted by bytes."""

import pytest

from tilewright.ir import parse
from tilewright.passes.analysis.work.weight_traffic import WeightBytes, weight_bytes

#: 4096 bytes of constant %w, fetched in four turns by 32 threads
KERNEL = """module @m {{ thread.func @k(%x: f32[1024], %w: f32[1024], %y: f32[1024],
    grid = [1, 1, 1], block = 32, constant_params = [1]) {{
  {early}
  {wait}
  {late}
  %v = thread.load(%x, at = [tid]) : f32
  thread.store(%v, %y, at = [tid])
  thread.return()
}} }}"""
WAIT = "thread.wait_for_launches()"


def reads(turns, name="a"):
    return f"""thread.loop(var = {name}, extent = {turns}) {{
      %{name}v = thread.load(%w, at = [8 * tid + 256 * {name}], lanes = 8) : f32x8
      thread.yield() }}"""


def prefetches(turns):
    return f"""thread.loop(var = p, extent = {turns}) {{
      thread.prefetch(%w, at = [tid + 32 * p]) thread.yield() }}"""


@pytest.mark.parametrize(
    ("early", "wait", "late", "exposed"),
    [
        ("", WAIT, reads(4), 4096),
        (reads(1), WAIT, reads(3, "b"), 3072),
        (reads(4), WAIT, "", 0),
        (prefetches(1), WAIT, reads(4), 0),  # a line of 128 bytes for each thread
        ("", "", reads(4), 4096),  # without a wait of its own, the launch is the wait
        ("", WAIT, "", None),
    ],
)
def test_bytes_before_the_wait_are_not_exposed(early, wait, late, exposed):
    text = KERNEL.format(early=early, wait=wait, late=late)
    expected = WeightBytes(0, 0) if exposed is None else WeightBytes(4096, exposed)
    assert weight_bytes(parse(text).funcs[0]) == expected


def test_a_kernel_without_constants_has_no_weights():
    text = KERNEL.format(early="", wait=WAIT, late=reads(4)).replace(", constant_params = [1]", "")
    assert weight_bytes(parse(text).funcs[0]) == WeightBytes(0, 0)
