"""The verifier finds each kind of fault, gathers them, and shows the ops around each."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir import (
    Block,
    Constants,
    Func,
    InputError,
    Level,
    Module,
    Op,
    ScalarType,
    TensorType,
    Value,
    VerifyError,
    parse,
    verify,
)
from tilewright.ir.modules.verifier import MAX_SHOWN, faults_of

TENSOR = """module @m {
  tensor.func @k(%x: f32[4, 8]) -> f32[4] {
    %r = tensor.reduce(%x, par = (i: 4), red = (j: 8), reads = [[i, j]], init = [0.0]) : f32[4] {
      ^(%a: f32, %acc: f32)
      %s = scalar.add(%a, %acc) : f32
      scalar.yield(%s)
    }
    tensor.return(%r)
  }
  tensor.func @main(%x: f32[32], %w: f32[4, 8]) -> f32[4], f32[32] {
    %y = tensor.call(%x, callee = @k) : f32[4]
    %z = tensor.map(%w, par = (n: 32), reads = [[n // 8, n % 8]]) : f32[32] {
      ^(%a: f32)
      scalar.yield(%a)
    }
    tensor.return(%y, %z)
  }
}
"""
CONTRACT = """module @m {
  tensor.func @main(%a: f32[4, 8], %b: f32[8, 6]) -> f32[4, 6] {
    %c = tensor.contract(%a, %b, par = (i: 4, j: 6), red = (k: 8), reads = [[i, k], [k, j]]) : f32[4, 6] {
      ^(%p: f32, %q: f32, %acc: f32)
      %r = scalar.fma(%p, %q, %acc) : f32
      scalar.yield(%r)
    }
    tensor.return(%c)
  }
}
"""
INDEXED = """module @m {
  tensor.func @main(%x: f32[4, 8], %i: i64[5]) -> f32[5, 8], f32[4, 8], f32[4, 8] {
    %g = tensor.gather(%x, %i, par = (a: 5, b: 8), reads = [[a]], at = [i0, b]) : f32[5, 8]
    %s = tensor.scan(%x, par = (a: 4, b: 8), reads = [[a, b]], dim = "b") : f32[4, 8] {
      ^(%e: f32, %acc: f32)
      %t = scalar.add(%e, %acc) : f32
      scalar.yield(%t)
    }
    %u = tensor.scatter(%x, %g, %i, par = (a: 5, b: 8), reads = [[a, b], [a]], at = [i0, b]) : f32[4, 8] {
      ^(%old: f32, %new: f32)
      scalar.yield(%new)
    }
    tensor.return(%g, %s, %u)
  }
}
"""
THREAD = """module @m {
  thread.func @k(%x: f32[4, 8], grid = [1, 2, 1], block = 32) {
    %s = thread.alloc() : f32[8] in shared
    thread.loop(var = i, extent = 4) {
      %v = thread.load(%x, at = [i, tid % 8], mask = [[tid, 0, 8]]) : f32
      thread.store(%v, %s, at = [i])
    }
    thread.barrier()
    thread.return()
  }
}
"""


@pytest.mark.parametrize("text", [TENSOR, CONTRACT, INDEXED, THREAD])
def test_sound_modules_pass(text: str) -> None:
    verify(parse(text))


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (TENSOR, "reads = [[i, j]]", "reads = [[i, j + 1]]",
         "read at [1, 8] in dimension 1 of size 8 without a fill"),
        (TENSOR, "reads = [[i, j]]", "reads = [[i]]", "expected 2 index expressions for operand 0, got 1"),
        (TENSOR, "reads = [[i, j]]", "reads = []", "expected one read and one fill per operand (1)"),
        (TENSOR, "reads = [[i, j]]", "reads = [[i, q]]", "uses unknown dimensions q"),
        (TENSOR, "red = (j: 8)", "red = (i: 8)", "are both parallel and reduced"),
        (TENSOR, "par = (i: 4)", "par = (i: 3)", "expected results of shape (3,)"),
        (TENSOR, "init = [0.0]", "init = [0.0, 1.0]", "expected 1 numbers as initial values"),
        (TENSOR, 'init = [0.0]', 'init = ["a"]', "expected 1 numbers as initial values"),
        (TENSOR, "init = [0.0]", 'fill = ["a"], init = [0.0]', "expected a number or none as fill"),
        (TENSOR, "%acc: f32)", "%acc: f64)", "expected body parameters (f32, f32), got (f32, f64)"),
        (TENSOR, "scalar.yield(%s)", "scalar.yield(%s, %s)",
         "expected the body to yield (f32), got (f32, f32)"),
        (TENSOR, "      scalar.yield(%s)\n", "", "expected the body to end in scalar.yield"),
        (TENSOR, "%s = scalar.add(%a, %acc) : f32", "%s = scalar.add(%a, %acc) : f64",
         "expected result types (f32), got (f64)"),
        (TENSOR, "%s = scalar.add(%a, %acc)", "%s = scalar.add(%a)", "expected 2 operands (a, b), got 1"),
        (TENSOR, "%s = scalar.add", "%q = tensor.constant(name = \"c\") : f32[1]\n%s = scalar.add",
         "does not belong into a body"),
        (TENSOR, "%y = tensor.call", "%q = scalar.const(value = 1, dtype = \"f32\") : f32\n%y = tensor.call",
         "at the top of a function"),
        (TENSOR, "%y = tensor.call", "thread.barrier()\n%y = tensor.call",
         "thread.barrier does not belong to the tensor level"),
        (TENSOR, "callee = @k", "callee = @q", "the module has no function @q"),
        (TENSOR, "callee = @k", "callee = @main", "expected a kernel that makes no calls itself"),
        (TENSOR, "%x: f32[32]", "%x: f32[33]", "buffer 0 of @k is f32[4, 8], got f32[33]"),
        (TENSOR, "call(%x,", "call(%x, %x,", "@k takes 2 buffers, got 3"),
        (TENSOR, "tensor.return(%r)", "", "expected the function to end in tensor.return"),
        (TENSOR, "tensor.return(%r)", "tensor.return(%r)\ntensor.return(%r)",
         "must be the last op of its block"),
        (TENSOR, "-> f32[4] {", "-> f32[5] {", "expected to return (f32[5]), got (f32[4])"),
        (CONTRACT, "scalar.fma(%p, %q, %acc)", "scalar.fma(%p, %p, %acc)", "expected a sum of products"),
        (INDEXED, "[i0, b]) : f32[5, 8]", "[i1, b]) : f32[5, 8]", "'at' uses unknown symbols i1"),
        (INDEXED, "at = [i0, b]) : f32[5, 8]", "at = [i0]) : f32[5, 8]",
         "expected 2 index expressions in 'at', got 1"),
        (INDEXED, "reads = [[a]]", "reads = [[a + 1]]", "operand 1 is read at [1, 5]"),
        (INDEXED, "reads = [[a]]", "reads = []", "expected one read and one fill per operand (1)"),
        (INDEXED, "[i0, b]) : f32[5, 8]", "[i0, b], mode = \"x\") : f32[5, 8]",
         "expected mode clip, wrap, fill, got 'x'"),
        (INDEXED, "%i: i64[5]", "%i: f32[5]", "expected integer indices, got f32[5]"),
        (INDEXED, 'dim = "b"', 'dim = "c"', "expected the scanned dimension among ['a', 'b'], got 'c'"),
        (INDEXED, "scalar.yield(%new)", "scalar.yield(%new, %old)", "expected the body to yield (f32)"),
        (THREAD, "[i, tid % 8]", "[j, tid % 8]", "symbol 'j' is not in scope"),
        (THREAD, "[i, tid % 8]", "[i]", "expected 2 index expressions, got 1"),
        (THREAD, "var = i,", "var = tid,", "loop variable 'tid' hides another symbol"),
        (THREAD, "block = 32", "block = 2048", "expected block = 1..1024 threads"),
        (THREAD, "grid = [1, 2, 1]", "grid = [1, 0, 1]", "expected grid = [x, y, z]"),
        (THREAD, "thread.barrier()", "thread.barrier() { }", "this op takes no body"),
        (THREAD, "block = 32) {", "block = 32) -> f32[1] {", "a thread-level function returns nothing"),
        (THREAD, "f32[8] in shared", "f64[8] in shared", "expected a f64 value, got f32"),
    ],
)  # fmt: skip
def test_each_kind_of_fault_is_found(text: str, old: str, new: str, message: str) -> None:
    assert old in text
    with pytest.raises(VerifyError) as e:
        verify(parse(text.replace(old, new, 1)))
    assert message in str(e.value)


def test_all_faults_are_gathered_with_the_ops_around_them() -> None:
    bad = TENSOR.replace("reads = [[i, j]]", "reads = [[i, j + 1]]").replace("callee = @k", "callee = @q")
    with pytest.raises(VerifyError) as e:
        verify(parse(bad))
    assert [f.func for f in e.value.faults] == ["k", "main"]
    assert "invalid module: 2 faults" in str(e.value)
    assert "  > %" in e.value.faults[0].context
    assert "tensor.return" in e.value.faults[0].context


def test_a_long_list_of_faults_is_cut_in_the_message_only() -> None:
    lines = "\n".join(f"%{i} = tensor.call(%x, callee = @none) : f32[1]" for i in range(100))
    module = parse(f"module @m {{ tensor.func @main(%x: f32[1]) {{ {lines}\n tensor.return() }} }}")
    with pytest.raises(VerifyError, match=f"and {100 - MAX_SHOWN} more") as e:
        verify(module)
    assert len(e.value.faults) == 100


def messages(*body: Op, params: tuple[Value, ...] = (), name: str = "main") -> list[str]:
    func = Func(Level.TENSOR, name, Block(params, (*body, Op("tensor.return"))))
    return [f.message for f in faults_of(Module("m", (func,)))]


def test_faults_text_cannot_express() -> None:
    x = Value(TensorType("f32", (1,)), "x")
    copied = Op("tensor.call", (x,), (), (x,))
    assert any("operand 0 is not defined" in m for m in messages(copied))
    assert any("already defined" in m for m in messages(copied, params=(x,)))
    assert any("unknown op 'tensor.foo'" in m for m in messages(Op("tensor.foo")))
    assert any("missing attribute 'callee'" in m for m in messages(Op("tensor.call")))
    assert any("plain name" in m for m in messages(name="a b"))
    scalar = Value(ScalarType("f32"))
    constant = Op("tensor.constant", (), (("name", "c"),), (scalar,))
    assert any("expected a tensor constant" in m for m in messages(constant))
    loop = Op("tensor.scan", (x,), (("par", None),), (x,))
    assert messages(loop, params=(x,))


def test_attributes_must_be_complete() -> None:
    func = parse(THREAD)["k"]
    loop = func.body.ops[1]
    short = Op(loop.name, (), loop.attrs[:2], (), loop.body)
    module = Module("m", (func.with_body(Block(func.params, (func.body.ops[0], short, *func.body.ops[2:]))),))
    with pytest.raises(VerifyError, match="expected all attributes in this order: var, extent, unroll"):
        verify(module)


def test_constants_must_have_the_type_the_op_says() -> None:
    op = '%c = tensor.constant(name = "c") : f32[2]'
    text = f"module @m {{ tensor.func @main() -> f32[2] {{ {op} tensor.return(%c) }} }}"
    verify(parse(text))
    verify(parse(text, constants=Constants({"c": np.zeros(2, np.float32)})))
    for array in (np.zeros(3, np.float32), np.zeros(2)):
        with pytest.raises(InputError, match="constant 'c' is float"):
            verify(parse(text, constants=Constants({"c": array})))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("grid = [99999999999, 1, 1]", "expected a grid of at most [2147483647, 65535, 65535] blocks"),
        ("grid = [1, 65536, 1]", "expected a grid of at most"),
    ],
)
def test_grids_that_no_device_launches_are_faults(text, told):
    module = parse(f"module @m {{\n  thread.func @k({text}, block = 4) {{\n    thread.return()\n  }}\n}}")
    assert told in str(faults_of(module)[0])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("%a = thread.alloc() : f32[4] in global", "expected a buffer in shared, reg or frag, got"),
        (
            "%a = thread.load(%x, at = [tid + 99999999999999999999]) : f32",
            "expected at within 281474976710656, which no memory exceeds, got 99999999999999999999",
        ),
        (
            "thread.loop(var = i, extent = 1000000000000000000) {\n      thread.yield()\n    }",
            "expected extent within",
        ),
        (
            "%a = thread.load(%x, at = [0], mask = [[tid, 0, 1000000000000000000]]) : f32",
            "expected mask within",
        ),
    ],
)
def test_indices_beyond_any_memory_are_faults(body, told):
    head = "module @m {\n  thread.func @k(%x: f32[4], grid = [1, 1, 1], block = 4) {\n"
    text = f"{head}    {body}\n    thread.return()\n  }}\n}}"
    assert told in str(faults_of(parse(text))[0])
