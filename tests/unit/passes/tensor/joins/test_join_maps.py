"""Short maps in one launch: values on the emulator, what may be one buffer, and what is alive at once."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import tilewright as tw
from tests.unit.codegen.test_overwrites import is_safe
from tilewright.codegen.emit.in_place import may_overwrite
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Constants, InputError, Level, parse
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.kernel_problem import map_parts, stream_problem

TARGET = "cuda:sm_90a"


def decays(shapes):
    """A step that shrinks weights of these shapes by a number of the input, and gives copies of them."""
    types = [f"f32[{s}]" for s in shapes]
    params = ", ".join(f"%w{i}: {t}" for i, t in enumerate(types))
    body = "".join(
        f"%{2 * i} = graph.multiply(%w{i}, %x) : {t}\n%{2 * i + 1} = graph.exp(%w{i}) : {t}\n"
        for i, t in enumerate(types)
    )
    results = ", ".join(f"%{i}" for i in range(2 * len(types)))
    updates = ", ".join(f"[{i + 1}, {2 * i}]" for i in range(len(types)))
    kinds = ", ".join(t for t in types for _ in range(2))
    return parse(
        f"module @m {{\n graph.func @main(%x: f32[], {params}, updates = [{updates}]) -> {kinds} {{\n"
        f"{body} graph.return({results})\n }}\n}}"
    )


SHAPES = ("3, 5, 7", "64", "10, 4", "1", "64, 40", "7, 5, 3")


def test_weights_of_all_shapes_change_in_one_launch_and_in_place():
    """What reads the old weights is one launch, what writes the new ones the next; nothing is copied."""
    lowered = lower(decays(SHAPES), resolve_target(TARGET))
    kernels = [f for f in lowered.thread.funcs if f.level is Level.THREAD]
    assert len(kernels) == 2
    pairs = [
        (f, read, written)
        for f in kernels
        for read, written in product(range(len(f.params)), repeat=2)
        if read != written and may_overwrite(f, read, written)
    ]
    assert len(pairs) >= len(SHAPES)
    for func, read, written in pairs:
        assert is_safe(func, read, written)


@pytest.mark.emulator
def test_a_joined_launch_gives_what_the_interpreter_gives():
    module, rng = decays(SHAPES), np.random.default_rng(0)
    first = {
        f"w{i}": rng.standard_normal(tuple(map(int, s.split(",")))).astype("f4") for i, s in enumerate(SHAPES)
    }
    module = replace(module, constants=Constants(first))
    state = initial_state(module)
    with tw.compile(module, "emulator") as exe:
        for _ in range(2):
            expected, state = interpret_step(module, [np.float32(0.75)], state)
            for got, wanted in zip(exe(np.float32(0.75)), expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6)
        for name, value in state.items():
            np.testing.assert_array_equal(exe.state[name], value)


def maps(sizes, *, apart):
    """Arrays that are made and added up one after the other; apart: with a sum between them."""
    kernels, calls, last = [], [], "%x"
    for i, n in enumerate(sizes):
        kernels.append(f"""tensor.func @make{i}(%x: f32[1]) -> f32[{n}] {{
    %0 = tensor.map(%x, par = (i: {n}), reads = [[0]]) : f32[{n}] {{
      ^(%a: f32)
      scalar.yield(%a)
    }}
    tensor.return(%0)
  }}
  tensor.func @sum{i}(%y: f32[{n}], %z: f32[1]) -> f32[1] {{
    %0 = tensor.reduce(%y, %z, par = (j: 1), red = (i: {n}), reads = [[i], [j]]) : f32[1] {{
      ^(%a: f32, %b: f32, %s: f32)
      %p = scalar.mul(%a, %b) : f32
      %q = scalar.add(%p, %s) : f32
      scalar.yield(%q)
    }}
    tensor.return(%0)
  }}""")
        source = last if apart else "%x"
        calls.append(f"%m{i} = tensor.call({source}, callee = @make{i}) : f32[{n}]")
        calls.append(f"%s{i} = tensor.call(%m{i}, {last}, callee = @sum{i}) : f32[1]")
        last = f"%s{i}"
    body = "\n".join(calls)
    return parse(
        f"module @m {{\n{chr(10).join(kernels)}\n tensor.func @main(%x: f32[1]) -> f32[1] {{\n{body}\n"
        f"tensor.return({last})\n }}\n}}"
    )


def calls_of(module, when="always"):
    ctx = PassContext(TARGET)
    joined = run_pipeline(module, Pipeline.parse(f"join-maps{{when={when}}}"), ctx)
    return [op for op in joined.main.body.ops if op.name == "tensor.call"]


def test_no_more_is_alive_than_before():
    """Arrays of 4000 bytes that are made one by one stay so; small ones are made side by side before it."""
    assert len(calls_of(maps([1000, 1000, 1000], apart=False))) == 6
    assert len(calls_of(maps([10, 20, 1000], apart=False))) == 5
    assert len(calls_of(maps([10, 20, 1000], apart=False), when="never")) == 6


def test_maps_that_wait_for_each_other_stay_apart():
    assert len(calls_of(maps([10, 10, 10], apart=True))) == 6


def test_a_cpu_keeps_its_kernels():
    module = maps([10, 10, 1000], apart=False)
    kept = run_pipeline(module, Pipeline.parse("join-maps{when=always}"), PassContext("opencl"))
    assert kept is module
    with pytest.raises(InputError, match="expected when among"):
        calls_of(module, when="often")


def test_parts_are_results_of_one_shape_and_their_problems_add_up():
    module = run_pipeline(
        maps([10, 20, 1000], apart=False), Pipeline.parse("join-maps{when=always}"), PassContext(TARGET)
    )
    (kernel,) = (f for f in module.funcs if len(map_parts(f)) > 1)
    parts = map_parts(kernel)
    assert stream_problem(kernel).elements == sum(stream_problem(p).elements for p in parts)
    assert stream_problem(kernel).bytes_written == sum(r.nbytes for r in kernel.result_types)
    assert sorted(r.shape for p in parts for r in p.result_types) == sorted(
        r.shape for r in kernel.result_types
    )
