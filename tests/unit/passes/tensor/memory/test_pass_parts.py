"""Parts of arrays: which kernels are given one, what it changes, and where it lies in a plan."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import InputError, Module, parse, show, verify
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.memory_headroom import joined_arrays
from tilewright.runtime.plan.hazards import find_hazards

KERNELS = """
  tensor.func @double(%x: f32[8, WIDTH]) -> f32[8, WIDTH] {
    %0 = tensor.map(%x, par = (i: 8, j: WIDTH), reads = [[i, j]]) : f32[8, WIDTH] {
      ^(%1: f32)
      %2 = scalar.add(%1, %1) : f32
      scalar.yield(%2)
    }
    tensor.return(%0)
  }
  tensor.func @first(%h: f32[1, WIDTH], %x: f32[8, WIDTH]) -> f32[1, WIDTH] {
    %0 = tensor.map(%h, %x, par = (i: 1, j: WIDTH), reads = [[i, j], [i + FIRST, j]]FILL) : f32[1, WIDTH] {
      ^(%1: f32, %2: f32)
      %3 = scalar.mul(%1, %2) : f32
      scalar.yield(%3)
    }
    tensor.return(%0)
  }
  tensor.func @second(%h: f32[1, WIDTH], %x: f32[8, WIDTH]) -> f32[1, WIDTH] {
    %0 = tensor.map(%h, %x, par = (i: 1, j: WIDTH), reads = [[i, j], [i + 3, j]]FILL) : f32[1, WIDTH] {
      ^(%1: f32, %2: f32)
      %3 = scalar.mul(%1, %2) : f32
      scalar.yield(%3)
    }
    tensor.return(%0)
  }
}
"""
MAIN = """module @parts {
  tensor.func @main(%x: f32[8, WIDTH], %h: f32[1, WIDTH]) -> f32[1, WIDTH] {
    %0 = tensor.call(%x, callee = @double) : f32[8, WIDTH]
    %1 = tensor.call(%h, SOURCE, callee = @first) : f32[1, WIDTH]
    %2 = tensor.call(%1, SOURCE, callee = @second) : f32[1, WIDTH]
    tensor.return(%2)
  }"""


def module(width: int = 32, first: int = 2, source: str = "%0", fill: str = "") -> Module:
    text = (MAIN + KERNELS).replace("WIDTH", str(width)).replace("FIRST", str(first))
    return parse(text.replace("SOURCE", source).replace("FILL", fill))


def passed(given: Module) -> Module:
    new = run_pipeline(given, Pipeline.parse("pass-parts, share-kernels"), PassContext())
    verify(new)
    return new


def parts(m: Module) -> list[int]:
    return [op.integer("start") for op in m.main.body.ops if op.name == "tensor.part"]


def values(m: Module, width: int = 32) -> np.ndarray:
    rng = np.random.default_rng(3)
    x, h = rng.standard_normal((8, width), np.float32), rng.standard_normal((1, width), np.float32)
    return tw.interpret(m, x, h)[0]


def test_kernels_of_two_rows_become_one_with_the_same_results():
    given = module()
    new = passed(given)
    assert parts(new) == [64, 96]
    assert len(new.funcs) == len(given.funcs) - 1
    np.testing.assert_array_equal(values(new), values(given))


def test_parts_are_arrays_inside_another_one():
    new = passed(module())
    whole = joined_arrays(new.main)
    assert [v.hint for v in whole.values()] == [new.main.body.ops[0].result.hint] * 2
    assert set(whole.values()) == {new.main.body.ops[0].result}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(module(width=24), id="a row does not begin where memory may begin"),
        pytest.param(module(source="%x"), id="an input"),
        pytest.param(module(fill=", fill = [none, 0.0]"), id="what lies outside is filled"),
        pytest.param(parse(show(module()).replace("mul", "add", 1)), id="no other kernel is equal"),
    ],
)
def test_other_kernels_stay(given):
    assert passed(given) is given


def test_a_part_has_to_lie_in_its_array():
    text = show(passed(module())).replace("start = 96", "start = 232")
    with pytest.raises(InputError, match="elements 232 to 264 leave the 256 of f32"):
        verify(parse(text))


def test_a_plan_reads_parts_where_they_lie():
    exe = tw.compile(module(), target="cuda:sm_90a", progress=False)
    aliases = [b for b in exe.plan.buffers if b.kind == "alias"]
    whole = exe.plan.buffer_by_name[aliases[0].base]
    assert [(b.offset, b.nbytes, b.base) for b in aliases] == [(256, 128, whole.name), (384, 128, whole.name)]
    assert not find_hazards(exe.plan)
    assert [launch.deps for launch in exe.plan.launches] == [(), (0,), (1,)]


def test_parts_run_on_the_cpu():
    given = module()
    rng = np.random.default_rng(3)
    x, h = rng.standard_normal((8, 32), np.float32), rng.standard_normal((1, 32), np.float32)
    exe = tw.compile(given, target="opencl", progress=False)
    assert sum(b.kind == "alias" for b in exe.plan.buffers) == 2
    np.testing.assert_allclose(exe(x, h)[0], values(given), rtol=1e-6)
