"""Text of the IR: structural round trip, what is printed and filled in, errors with a place, hostile text."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_samples import ATTRS, modules

from tilewright.ir import (
    Func,
    InputError,
    Level,
    Module,
    Op,
    Sym,
    TensorType,
    Value,
    equal,
    parse,
    parse_file,
    show,
    verify,
)
from tilewright.ir.builder import Builder, scalar_body, structured
from tilewright.ir.modules.compare import same_attr
from tilewright.ir.modules.parser import FORMER_OPS, MAX_DEPTH
from tilewright.ir.modules.printer import show_attr
from tilewright.ir.nodes import Attr, Block, walk

THREAD = """module @m(target = "opencl") {
  thread.func @k(%x: f32[4, 8], grid = [1, 1, 1], block = 32) {
    %0 = thread.alloc() : f32[2] in reg loc "relay:conv#1"
    thread.loop(var = i, extent = 4) {
      %v = thread.load(%x, at = [i, tid % 8], mask = [[tid, 0, 8]]) : f32
      thread.store(%v, %0, at = [i // 2])
    }
    thread.return()
  }
}
"""


@settings(max_examples=150, deadline=None)
@given(modules())
def test_modules_survive_text(module: Module) -> None:
    text = show(module)
    again = parse(text)
    assert equal(again, module)
    assert show(again) == text
    for f, g in zip(module.funcs, again.funcs, strict=True):
        assert [o.loc for o in walk(f.body)] == [o.loc for o in walk(g.body)]


@settings(max_examples=300, deadline=None)
@given(ATTRS, ATTRS)
def test_attributes_survive_text_and_only_equal_ones_print_alike(a: Attr, b: Attr) -> None:
    def back(attr: Attr) -> Attr:
        return parse(f"module @m(a = {show_attr(attr)}) {{}}").get("a")

    assert same_attr(back(a), a)
    assert same_attr(a, b) == (show_attr(a) == show_attr(b))


@pytest.mark.parametrize(("a", "b"), [(True, 1), (1, 1.0), (0.0, -0.0), ((1,), (True,)), ("i", Sym("i"))])
def test_attributes_of_different_types_differ(a: Attr, b: Attr) -> None:
    assert not same_attr(a, b)
    m, n = (Module("m", (), (("a", x),)) for x in (a, b))
    assert not equal(m, n)
    assert equal(m, parse(show(m)))


def test_input_names_survive_whatever_they_are() -> None:
    names = ("x", "a b", 'q"uote', "1", "é", "conv/w:0", "")
    params = tuple(Value(TensorType("f32", (1,)), n) for n in names)
    body = Block(params, (Op("tensor.return"),))
    module = parse(show(Module("m", (Func(Level.TENSOR, "main", body),))))
    assert module.input_names == (*names[:-1], "6")


def test_defaults_are_filled_in_and_left_out_below_the_graph_level() -> None:
    module = parse(THREAD)
    ops = {o.name: o for o in walk(module["k"].body)}
    assert ops["thread.loop"]["unroll"] == 0
    assert ops["thread.load"]["lanes"] == 1
    assert show(module) == THREAD
    op = "%0 = graph.softmax(%x) : f32[4]"
    graph = f"module @m {{ graph.func @main(%x: f32[4]) -> f32[4] {{ {op} graph.return(%0) }} }}"
    assert "axis = -1" in show(parse(graph))


#: an op of every former name, as texts of earlier versions hold it
FORMER = """module @m(target = "cuda") {
  thread.func @k(%x: f32[4], grid = [1, 1, 1], block = 32) {
    %a = thread.alloc() : f32[2, 16, 8] in frag
    %b = thread.alloc() : f32[2] in reg
    %c = thread.alloc() : f32[2] in reg
    thread.renew_rows(%b, %c, scale = 0.5)
    thread.scale_rows(%a, %b, seldom = true)
    thread.publish_shared()
    thread.return()
  }
}
"""


def test_texts_of_earlier_versions_are_read_with_their_former_names() -> None:
    assert all(name in FORMER for name in FORMER_OPS)
    module = parse(FORMER)
    verify(module)
    names = [o.name for o in walk(module["k"].body)]
    assert names[3:6] == ["thread.rescale_factors", "thread.scale_rows", "thread.fence_async_proxy"]
    assert "skip_if_one = true" in show(module)
    now = FORMER.replace("renew_rows", "rescale_factors").replace("seldom", "skip_if_one")
    assert show(module) == now.replace("publish_shared", "fence_async_proxy")


def test_locations_may_be_left_out() -> None:
    assert 'loc "' in THREAD
    assert 'loc "' not in show(parse(THREAD), locations=False)


@pytest.mark.parametrize(
    ("change", "place", "expected"),
    [
        (("module @m", "module m"), "1:8", "expected a symbol (@f), got 'm'"),
        (("%x: f32", "%x f32"), "2:21", "expected ':'"),
        (("f32[4, 8]", "f33[4, 8]"), "2:22", "expected a dtype among"),
        (("[2] in reg", "[2] in rag"), "3:27", "expected a memory space among"),
        (("thread.load(", "thread.lod("), "5:12", "unknown op 'thread.lod' (did you mean 'thread.load'?)"),
        (("load(%x", "load(%y"), "5:24", "use of undefined value %y"),
        (("%v = thread", "%x = thread"), "5:7", "%x is defined twice"),
        (("extent = 4", "extent = 4.5"), "4:5", "attribute 'extent' expects int, got 4.5"),
        (("var = i, ", ""), "4:5", "missing attribute 'var' (sym)"),
        (("var = i", "var = i, vor = 1"), "4:5", "unknown attribute 'vor' (did you mean 'var'?)"),
        (("extent = 4", "extent = 4, extent = 5"), "4:38", "attribute 'extent' is given twice"),
        (("tid % 8", "tid % 0"), "5:41", "expected a positive divisor"),
        (("[i // 2]", "[i // 2"), "6:40", "expected ',' or ']', got ')'"),
        ((") : f32\n", ")\n"), "5:12", "expected one type per result (1), got 0"),
        (('"relay:conv#1"', r'"\q"'), "3:45", "expected a string with JSON escapes"),
        (("block = 32", "block = 123456789012345678901"), "2:59", "expected a number of at most 20 digits"),
        (("i // 2", "i // 2 + 99999999999 * 99999999999"), "6:55", "constants fit into 64 bits"),
        (("@k(", "@k() { } thread.func @k("), "2:36", "function @k is defined twice"),
        (("at = [i, ", "at = [true // 2, "), "5:39", "expected ',' or ']', got '//'"),
    ],
)  # fmt: skip
def test_errors_say_where_and_what_was_expected(change: tuple[str, str], place: str, expected: str) -> None:
    assert change[0] in THREAD
    with pytest.raises(InputError) as e:
        parse(THREAD.replace(*change, 1), where="k.ir")
    assert str(e.value).startswith(f"k.ir:{place}: ")
    assert expected in str(e.value)


def test_the_end_of_the_text_is_named() -> None:
    with pytest.raises(InputError, match="got the end of the text"):
        parse(THREAD[:-3])


def test_names_defined_in_a_body_end_with_it() -> None:
    with pytest.raises(InputError, match="undefined value %v"):
        parse(THREAD.replace("thread.return()", "thread.store(%v, %0, at = [0])\n thread.return()"))


@pytest.mark.parametrize(
    "text",
    [
        "module @m(a = " + "[" * 5000 + "]" * 5000 + ") {}",
        "module @m(a = " + "(" * 5000 + "i" + ")" * 5000 + ") {}",
        "module @m(a = i" + " + j * 2" * 5000 + ") {}",
        "module @m(a = min(i, j" + "), k)" * 3000 + ") {}",
        "module @m { thread.func @k() {" + " thread.if(mask = []) {" * 3000 + "}" * 3000 + "} }",
        "module @m(a = " + "9" * 1_000_000 + ") {}",
        "module @m(a = " + "9" * 1_000_000 + ".5) {}",
        'module @m(a = "' + "x" * 2_000_000,
        'module @m(a = "' + '\\"' * 1_000_000,
        "@" * 2_000_000,
        "module @m { " + "%" * 1_000_000,
        "\0" * 1_000_000,
        "",
        "#" * 1_000_000,
    ],
    ids=range(14),
)
def test_hostile_text_is_one_short_error(text: str) -> None:
    with pytest.raises(InputError) as e:
        parse(text)
    assert len(str(e.value)) < 1000


def test_brackets_in_strings_and_comments_do_not_nest() -> None:
    deep = "(" * (2 * MAX_DEPTH)
    assert parse(f'module @m(a = "{deep}") {{ # {deep}\n}}').get("a") == deep


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_text_never_breaks_the_parser(data: st.DataObject) -> None:
    text = bytearray(THREAD.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.sampled_from(["set", "drop", "copy"]))
        if kind == "set":
            text[at] = data.draw(st.integers(0, 127))
        elif kind == "drop":
            del text[at : at + data.draw(st.integers(1, 20))]
        else:
            text[at:at] = text[: data.draw(st.integers(1, 40))]
    try:
        parse(text.decode())
    except InputError:
        return


def test_files_that_cannot_be_read_are_input_errors(tmp_path: Path) -> None:
    (tmp_path / "binary.ir").write_bytes(random.Random(0).randbytes(4096))
    (tmp_path / "ok.ir").write_text(THREAD)
    (tmp_path / "ok.safetensors").write_bytes(b"not safetensors")
    for name in ("missing.ir", "binary.ir", "ok.ir", "."):
        with pytest.raises(InputError):
            parse_file(tmp_path / name)
    (tmp_path / "ok.safetensors").unlink()
    assert show(parse_file(tmp_path / "ok.ir")) == THREAD


def large(count: int) -> Module:
    x = Value(TensorType("f32", (4, 8, 16, 16)), "x")
    main, value, n = Builder("relay:nn.relu#0 net.relay:7"), x, Sym
    for _ in range(count // 3):
        b, (p,) = scalar_body(["f32"])
        b.do("scalar.yield", b.value("scalar.max", p, p))
        (value,) = structured(
            main, "tensor.map", [value], par={"a": 4, "b": 8, "c": 16, "d": 16}, body=b.block((p,)),
            reads=[(n("a"), n("b"), (n("c") * 16 + n("d")) // 16, n("d") % 16)], types=[x.type],
        )  # fmt: skip
    main.do("tensor.return", value)
    return Module("m", (Func(Level.TENSOR, "main", main.block((x,)), (value.type,)),))


def test_ten_thousand_ops_print_in_3_s_and_parse_in_10_s_of_the_processor() -> None:
    module = large(10_000)
    start = time.process_time()
    text = show(module)
    printed = time.process_time()
    again = parse(text)
    parsed = time.process_time()
    assert equal(module, again)
    assert printed - start < 3
    assert parsed - printed < 10
