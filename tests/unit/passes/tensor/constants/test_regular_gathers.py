"""Gathers by constant indices: rules that are found, and indices that follow none."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Constants, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline


@pytest.mark.parametrize(
    ("indices", "place"),
    [
        ([0, 0, 1, 1, 2, 2], "y // 2"),
        ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], "y // 3"),
        ([4, 3, 2, 1, 0], "y * (-1) + 4"),
        ([1, 3], "y * 2 + 1"),
        ([0, 0, 1, 2, 2, 3], "y * 2 // 3"),
        ([0, 1, 2, 3, 4], "y"),
        ([2], "2"),
        ([3, 4, 0, 1, 2], "(y + 3) % 5"),
        ([1, 2, 0, 1, 2, 0, 1], "(y + 1) % 3"),
        ([0, 2, 1], None),
        ([3, 4, 1, 2, 0], None),
        ([0, 1, 5], None),
        ([-1, 0, 1], None),
    ],
)
def test_rules(indices: list[int], place: str | None) -> None:
    n = len(indices)
    text = f"""module @net {{ tensor.func @main(%x: f32[5, 3]) -> f32[{n}, 3] {{
      %0 = tensor.constant(name = "i") : i32[{n}]
      %1 = tensor.gather(%x, %0, par = (y: {n}, c: 3), reads = [[y]], at = [i0, c]) : f32[{n}, 3]
      tensor.return(%1) }} }}"""
    module = parse(text).with_constants(Constants({"i": np.array(indices, np.int32)}))
    done = run_pipeline(module, Pipeline.parse("regular-gathers, dce"), PassContext())
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(tw.interpret(done, x), tw.interpret(module, x))
    (op,) = [op for op in done.main.body.ops if op.name in ("tensor.gather", "tensor.map")]
    assert (op.name == "tensor.gather") == (place is None)
    if place is not None:
        assert f"reads = [[{place}, c]]" in tw.show(done)


@pytest.mark.parametrize(("along", "taken"), [("c + y * 0", True), ("y + c", False), ("c - y", False)])
def test_indices_of_the_gather_alone_must_lie_inside_as_well(along: str, taken: bool) -> None:
    """Gradients of gradients read so, with numbers in the place of what lies outside."""
    text = f"""module @net {{ tensor.func @main(%x: f32[5, 3]) -> f32[5, 3] {{
      %1 = tensor.gather(%x, par = (y: 5, c: 3), reads = [], at = [y, {along}], mode = "fill") : f32[5, 3]
      tensor.return(%1) }} }}"""
    module = parse(text)
    done = run_pipeline(module, Pipeline.parse("regular-gathers"), PassContext())
    assert (done is not module) == taken
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(tw.interpret(done, x), tw.interpret(module, x))
