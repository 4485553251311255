"""Relay text: every lexical and grammar rule, places in errors, deep and damaged texts."""

import base64
import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.frontends.relay.reading.text import read_text
from tilewright.frontends.tvm import ast
from tilewright.frontends.weights.files import save_param_dict
from tilewright.ir import InputError, UnsupportedError

HEADER = '#[version = "0.0.5"]\n'
NETWORKS = ("mlp", "resnet18", "resnet50", "mobilenet", "squeezenet", "vgg16", "dqn", "resnet20_cifar")


def body(code: str, params: str = "%x: Tensor[(2, 3), float32], %y: Tensor[(3), float32]") -> ast.Expr:
    return read_text(f"{HEADER}def @main({params}) {{ {code} }}", "t.relay").functions["main"].body


def attrs(code: str) -> dict:
    return dict(body(f"op(%x, {code})").attrs)


def fault(text: str) -> str:
    with pytest.raises(InputError) as error:
        read_text(text, "t.relay")
    return str(error.value)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_parse(name, data_dir):
    module = read_text((data_dir / "relay" / f"{name}.relay").read_text(), name)
    main = module.functions["main"]
    assert main.params[0].name == "data"
    assert isinstance(main.body, ast.Call)
    assert str(main.body.checked).startswith("Tensor[")


def test_call_has_arguments_attributes_type_and_place():
    call = body('nn.conv2d(%x, %y, strides=[2, 1], out_dtype="",) /* ty=Tensor[(2), float32] span=a b:3:4 */')
    assert call.callee.name == "nn.conv2d"
    assert [a.name for a in call.args] == ["x", "y"]
    assert call.attrs == {"strides": (2, 1), "out_dtype": ""}
    assert call.checked == ast.TensorType((2,), "float32")
    assert call.span == ast.Span("t.relay", 2, 68, origin="a b:3:4")


@pytest.mark.parametrize(
    ("literal", "value", "dtype"),
    [
        ("1", 1, "int32"),
        ("-7", -7, "int32"),
        ("--7", 7, "int32"),
        ("3000000000", 3000000000, "int64"),
        ("5i64", 5, "int64"),
        ("-128i8", -128, "int8"),
        ("2f", 2.0, "float32"),
        ("1.5", 1.5, "float32"),
        ("2.5e-05f", np.float32(2.5e-05), "float32"),
        ("1e3f64", 1000.0, "float64"),
        ("0.5f16", 0.5, "float16"),
        ("inff", np.inf, "float32"),
        ("-inff", -np.inf, "float32"),
        ("inff16", np.inf, "float16"),
        ("True", True, "bool"),
        ("False", False, "bool"),
    ],
)
def test_literal(literal, value, dtype):
    constant = body(literal)
    assert constant.value.dtype == dtype
    assert constant.value == value


def test_nan_literal():
    assert np.isnan(body("nanf").value)


@pytest.mark.parametrize("literal", ["300i8", "1.5i32", "9" * 30, "1" * 5000])
def test_bad_number(literal):
    assert fault(f"{HEADER}def @main() {{ {literal} }}").startswith("t.relay:2:15: expected an integer")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a=1", {"a": 1}),
        ("a=2.5f", {"a": 2.5}),
        ("a=-1f64", {"a": -1.0}),
        ("a=True, b=False", {"a": True, "b": False}),
        ("a=None, b=nullptr", {"a": None, "b": None}),
        ("a=[]", {"a": ()}),
        ("a=[1, 2,]", {"a": (1, 2)}),
        ("a=[[0, 0], [1, 1]]", {"a": ((0, 0), (1, 1))}),
        ("a=(3)", {"a": 3}),
        ("a=(3, 4)", {"a": (3, 4)}),
        (r'a="x\"y\\\n\x41"', {"a": 'x"y\\\nA'}),
        (r'a="C:\dir"', {"a": r"C:\dir"}),
        ("a='gvar'", {"a": "gvar"}),
        ("a={b=1, c=[2]}", {"a": (("b", 1), ("c", (2,)))}),
        ("a.b=1, T.c=2", {"a.b": 1, "T.c": 2}),
        ('attrs_type_key="relay.attrs.X"', {}),
        ("/* en_id=420 */", {}),
    ],
)
def test_attribute_values(code, expected):
    assert attrs(code) == expected
    assert [type(v) for v in attrs(code).values()] == [type(v) for v in expected.values()]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("%x == %y", "equal"),
        ("%x != %y", "not_equal"),
        ("%x < %y", "less"),
        ("%x <= %y", "less_equal"),
        ("%x > %y", "greater"),
        ("%x >= %y", "greater_equal"),
        ("%x + %y", "add"),
        ("%x - %y", "subtract"),
        ("%x * %y", "multiply"),
        ("%x / %y", "divide"),
    ],
)
def test_infix_operator(code, name):
    assert body(code).callee.name == name


def test_infix_precedence_and_association():
    equal = body("%x - %y - %x * %y < %y == %x")
    less = equal.args[0]
    outer = less.args[0]
    names = [equal.callee.name, less.callee.name, outer.callee.name, outer.args[0].callee.name]
    assert [*names, outer.args[1].callee.name] == ["equal", "less", "subtract", "subtract", "multiply"]


def test_comments_nest_and_hide_quotes():
    call = body('// "one\n f(/* a /* b */ "c */ %x) // last\n /* ty=Tensor[(2), float32] */')
    assert call.checked == ast.TensorType((2,), "float32")


def test_comment_signs_in_strings_are_text():
    assert attrs('a="/* no */ // no"') == {"a": "/* no */ // no"}


def test_comment_that_is_no_type_is_only_a_comment():
    assert body("f(%x) /* ty=meh [ */").checked is None


def test_names_with_dots_colons_and_dashes():
    params = "%a.0.weight: int32, %aten::conv_0.w-1: int32, %input.1: int32, %a/b: int32"
    fields = body("(%a.0.weight, %aten::conv_0.w-1, %input.1, %a/b)", params).fields
    assert [f.name for f in fields] == ["a.0.weight", "aten::conv_0.w-1", "input.1", "a/b"]


def test_dotted_number_is_a_projection_unless_declared():
    inner = body("%p.1.0", "%p: (int32, (int32,))")
    assert (inner.index, inner.tuple.index, inner.tuple.tuple.name) == (0, 1, "p")
    declared = body("%p.1", "%p: (int32, int32), %p.1: int32")
    assert declared.name == "p.1"


def test_graph_binding_is_shared_and_projected():
    pair = body("%0 = split(%x); %1 = (%0.0, %0.1); %1")
    assert pair.fields[0].tuple is pair.fields[1].tuple
    assert [f.index for f in pair.fields] == [0, 1]


def test_let_shadows_and_chains():
    let = body("let %a: Tensor[(2), float32] = f(%x); let %a = g(%a); %a")
    (first, _), (second, value) = let.bindings
    assert value.args[0] is first
    assert let.body is second
    assert first.type == ast.TensorType((2,), "float32")


def test_statement_without_binding_is_dropped():
    assert body("f(%x); %y").name == "y"


def test_functions_calls_and_conditions():
    call = body("%0 = fn (%a: int32, Primitive=1) -> int32 { %a }; %0(1)(2)")
    inner = call.callee
    assert inner.callee.attrs == {"Primitive": 1}
    assert inner.callee.result == ast.TensorType((), "int32")
    branch = body("if (True) { %x } else { let %z = %y; %z }")
    assert isinstance(branch.otherwise, ast.Let)


def test_tuples_and_blocks():
    assert body("()").fields == ()
    assert len(body("(%x,)").fields) == 1
    assert len(body("(%x, %y,)").fields) == 2
    assert body("({ (%x) })").name == "x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Tensor[(), float32]", "Tensor[(), float32]"),
        ("Tensor[(1i64, ?, meta[tir.Any][0], %n,), bool]", "Tensor[(1, ?, ?, ?), bool]"),
        ("uint8", "Tensor[(), uint8]"),
        ("(int32, (float32,),)", "(Tensor[(), int32], (Tensor[(), float32],))"),
        ("()", "()"),
        ("fn (int32) -> ()", "fn (Tensor[(), int32]) -> ()"),
        ("fn [A](A) -> A", "fn (A) -> A"),
        ("List[int32]", "List[Tensor[(), int32]]"),
        ("ref(int32)", "ref[Tensor[(), int32]]"),
        ("_", "_"),
    ],
)
def test_types(text, shown):
    assert str(body("%v", f"%v: {text}").type) == shown


def test_type_definitions_externs_generics_and_devices_are_read():
    text = """type List[A] { Cons(A, List[A]), Nil, }
    extern type Handle
    type Empty {}
    def @id[A, B](%x {virtual_device=meta[VirtualDevice][0]}: A, %y, Compiler="c") -> A { %x }
    def @main(%z: int32) { @id(%z, 1) }"""
    module = read_text(HEADER + text, "t")
    assert list(module.functions) == ["id", "main"]
    assert module.functions["id"].attrs == {"Compiler": "c"}
    assert module.functions["id"].params[1].type is None
    assert module.functions["main"].body.callee.name == "id"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("match (%x) { Cons(%h, _) => %h, Nil => 1 }", "Match"),
        ("match? (%x) { (%a, %b) => 1, %v: int32 => 2 }", "Match"),
        ("ref(%x)", "RefCreate"),
        ("ref_read(%x)", "RefRead"),
        ("ref_write(%x, %y)", "RefWrite"),
        ("Nil", "Constructor"),
    ],
)
def test_foreign_constructs_are_kept_as_such(code, kind):
    assert body(code).kind == kind


@pytest.mark.parametrize("name", ["letter", "matches", "reference", "iffy", "infer", "function", "Tensorize"])
def test_name_that_only_begins_with_a_keyword(name):
    assert getattr(body(f"nn.{name}(%x)").callee, "name", None) == f"nn.{name}"


ENCODED = base64.b64encode(save_param_dict({"c": np.array(20, "float32")})[41:]).decode()
METADATA = """
#[metadata]
{"root": 1, "nodes": [{"type_key": ""},
 {"type_key": "Map", "keys": ["relay.Constant", "relay.attrs.ScanopAttrs"], "data": [2, 4]},
 {"type_key": "Array", "data": [3]}, {"type_key": "relay.Constant", "attrs": {"data": "0"}},
 {"type_key": "Array", "data": [5]},
 {"type_key": "relay.attrs.ScanopAttrs", "attrs": {"axis": "6", "dtype": "", "exclusive": "7"}},
 {"type_key": "IntImm", "attrs": {"dtype": "int32", "value": "1"}},
 {"type_key": "IntImm", "attrs": {"dtype": "bool", "value": "0"}}],
 "b64ndarrays": ["ENCODED"], "attrs": {"tvm_version": "0.18.0"}}
""".replace("ENCODED", ENCODED)


def test_metadata_constants_and_attributes():
    text = (
        HEADER
        + "def @main(%x: int32) { cumsum(%x, meta[relay.Constant][0], meta[relay.attrs.ScanopAttrs][0]) }"
    )
    call = read_text(text + METADATA, "t").functions["main"].body
    assert call.args[1].value == np.float32(20.0)
    assert call.attrs == {"axis": 1, "dtype": "", "exclusive": False}
    assert call.attrs["exclusive"] is False


def test_metadata_index_out_of_range():
    message = fault(HEADER + "def @main() { meta[relay.Constant][1] }" + METADATA)
    assert message == "t.relay:2:15: expected meta[relay.Constant][1] in the metadata, it has 1 of them"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.relay:1:1: expected "),
        (
            '#[version = "0.0.4"]\ndef @main() { 1 }',
            "t.relay:1:1: expected Relay text of version 0.0.5, got 0.0.4",
        ),
        (HEADER + "def @main(%x: int32) {\n  f(%x\n}", "t.relay:4:1: expected "),
        (HEADER + "def @main() { f(%x) }", "t.relay:2:17: expected a declared variable, got '%x'"),
        (HEADER + "def @main(%x: int32) { %x-1 }", "write spaces around '-' to subtract"),
        (HEADER + "def @main() { %3 }", "t.relay:2:15: expected a value bound before its use, got '%3'"),
        (HEADER + "def @main() { 1", "t.relay:2:16: expected "),
        (HEADER + "def @main() { /* 1 }", "t.relay:2:15: expected '*/' to close this comment"),
        (HEADER + "def @main(%a: int32, %a: int32) { 1 }", "expected distinct parameter names"),
        (
            HEADER + "def @main() { 1 } def @main() { 1 }",
            "t.relay:2:23: expected one definition of @main, got two",
        ),
        (HEADER + "def @main(%x: int32) { f(a=1, a=2) }", "expected attribute 'a' once"),
        (HEADER + "def @main(%x: int32) { f(a=1, %x) }", "expected attributes behind all arguments"),
        (HEADER + "def @main() { meta[relay.Constant][0] }", "print with show_meta_data=True"),
        (HEADER + "def @main(%x: Tensor[(-1), int32]) { 1 }", "expected a dimension of at least 0, got -1"),
        (HEADER + "type A { B }", "t.relay: expected at least one function, got none"),
        (HEADER + "def @main() { \x00 }", "t.relay:2:15: expected "),
    ],
)
def test_error_names_place_and_expectation(text, message):
    assert message in fault(text)


def test_external_function_is_unsupported():
    with pytest.raises(UnsupportedError, match="@f in another form"):
        read_text(HEADER + "def @f = meta[ExternalFunc][0]", "t")


N = 4000


@pytest.mark.parametrize(
    "code",
    [
        "f(" * N + "%x" + ")" * N,
        "(" * N + "%x" + ")" * N,
        "{" * N + "%x" + "}" * N,
        "(" * N + "%x" + ",)" * N,
        "%x" + " + %x" * N,
        "%x" + ".0" * N,
        "%x" + "()" * N,
        "fn () {" * N + "%x" + "}" * N,
        "if (%x) {" * N + "%x" + "} else {%x}" * N,
        "".join(f"let %a{i} = f(%x); " for i in range(N)) + "%x",
        "".join(f"%{i} = f(%x); " for i in range(N)) + "%x",
    ],
)
def test_depth_is_no_limit(code):
    assert body(code) is not None


@pytest.mark.parametrize(
    "code",
    [
        "f(%x, a=" + "[" * N + "]" * N + ")",
        "let %v: " + "(" * N + "int32" + ",)" * N + " = %x; %v",
        "let %v: " + "fn (" * N + "int32" + ") -> int32" * N + " = %x; %v",
    ],
)
def test_depth_of_types_and_lists_is_limited(code):
    with pytest.raises(InputError, match=r"^t.relay.*expected (types|lists) nested at most"):
        body(code)


SEED = HEADER + (
    "def @f(%a: Tensor[(1, 2), float32]) -> (float32,) {"
    " let %b: int32 = fn (%c) { if (True) { -1.5f } else { %c } };"
    ' %0 = nn.op(%a, axis=[1, -2], s="x\\n", k=meta[A.B][0]) /* ty=int32 */; (%0.1, @f(%b), %a + %b) }'
)


PIECES = ("/*", "meta[", "%", '"', "9" * 40, "#[metadata]", "(", "}", "let ", ".0")


@settings(max_examples=150)
@given(st.data())
def test_damaged_text_is_an_input_error_or_fine(data):
    text = SEED
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        piece = data.draw(st.one_of(st.text(max_size=3), st.sampled_from(PIECES)))
        text = text[:at] + piece + text[at + cut :]
    with contextlib.suppress(InputError):
        read_text(text, "t")
