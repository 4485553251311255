"""Relay JSON: same syntax as the text, hostile graphs, formats that are not Relay."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.frontends.relay.reading.json_reader import read_json
from tilewright.frontends.relay.reading.text import read_text
from tilewright.frontends.tvm import ast
from tilewright.ir import InputError


def shape_of(expr: ast.Expr, seen: dict[int, int]) -> object:
    """A comparable form of a small expression graph: nodes numbered in order of first visit."""
    if id(expr) in seen:
        return seen[id(expr)]
    match expr:
        case ast.Call():
            form = (
                "call",
                shape_of(expr.callee, seen),
                *(shape_of(a, seen) for a in expr.args),
                expr.checked,
            )
        case ast.OpRef() | ast.GlobalVar():
            return expr.name
        case ast.Var():
            form = (expr.name, expr.type)
        case ast.Projection():
            form = ("field", shape_of(expr.tuple, seen), expr.index, expr.checked)
        case ast.Tuple():
            form = ("tuple", *(shape_of(f, seen) for f in expr.fields), expr.checked)
    seen[id(expr)] = len(seen)
    return form


@pytest.mark.parametrize("name", ["mlp", "resnet20_cifar"])
def test_json_and_text_give_the_same_graph(name, data_dir):
    text = read_text((data_dir / "relay" / f"{name}.relay").read_text(), name).functions["main"]
    stored = read_json((data_dir / "relay" / f"{name}.json").read_text(), name).functions["main"]
    assert [(p.name, p.type) for p in text.params] == [(p.name, p.type) for p in stored.params]
    assert text.result == stored.result
    assert shape_of(text.body, {}) == shape_of(stored.body, {})


def test_attributes_have_the_types_of_their_class(data_dir):
    expr = read_json((data_dir / "relay" / "resnet20_cifar.json").read_text(), "n").functions["main"].body
    found: dict[str, dict] = {}
    while isinstance(expr, ast.Call | ast.Projection):
        if isinstance(expr, ast.Projection):
            expr = expr.tuple
            continue
        found[expr.callee.name] = dict(expr.attrs)
        expr = expr.args[0]
    assert found["nn.batch_norm"] == {"axis": 1, "epsilon": 2e-5, "center": True, "scale": False}
    assert found["nn.batch_norm"]["center"] is True
    assert found["nn.conv2d"] | {"strides": None} == {
        "strides": None, "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1, "channels": 16,
        "kernel_size": (3, 3), "data_layout": "NCHW", "kernel_layout": "OIHW", "out_layout": "",
        "out_dtype": "",
    }  # fmt: skip


def document(*nodes: dict, root: object = 1, arrays: list | None = None) -> str:
    return json.dumps({"root": root, "nodes": [{"type_key": ""}, *nodes], "b64ndarrays": arrays or []})


def node(kind: str, items: list | None = None, /, **fields: object) -> dict:
    entry: dict[str, object] = {"type_key": kind, "attrs": {k: str(v) for k, v in fields.items()}}
    return entry if items is None else {**entry, "data": items}


def fault(text: str) -> str:
    with pytest.raises(InputError) as error:
        read_json(text, "m.json")
    return str(error.value)


def function(body: int) -> dict:
    return node("relay.Function", params=0, body=body, ret_type=0, attrs=0)


EMPTY = node("relay.Tuple", fields=0)
#: Node 3 where it follows two others: a variable whose name refers to itself, which is then just text.
VARIABLE = (node("relay.Var", vid=4), node("relay.Id", name_hint=4))


def test_deep_graph_and_long_let_chain():
    n = 5000
    calls = [node("relay.Tuple", fields=4 + 2 * i) for i in range(n)]
    arrays = [node("Array", [3 + 2 * (i + 1)]) for i in range(n)]
    nodes = [entry for pair in zip(calls, arrays, strict=True) for entry in pair]
    deep = read_json(document(function(3), node("Array", []), *nodes, node("relay.Tuple", fields=2)), "m")
    expr, depth = deep.functions["main"].body, 0
    while expr.fields:
        expr, depth = expr.fields[0], depth + 1
    assert depth == n
    lets = [node("relay.Let", var=2, value=2, body=6 + i) for i in range(n)]
    name = {"type_key": "runtime.String", "repr_str": "v"}
    variable = [node("relay.Var", vid=3), node("relay.Id", name_hint=4), name]
    chain = read_json(document(function(5), *variable, *lets, node("relay.Tuple", fields=0)), "m")
    assert len(chain.functions["main"].body.bindings) == n


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.json:1:1: expected JSON"),
        ('{"root": 1,', "m.json:1:12: expected JSON"),
        ("[" * 100_000, "m.json: expected JSON nested at most a few levels"),
        ("[]", "m.json: expected a JSON object, got list"),
        ('{"root": ' + "9" * 5000 + "}", "m.json: expected JSON, got a fault"),
        (
            '{"root_index": 1, "nodes": []}',
            "expected the JSON of TVM 0.19 or older, got that of TVM 0.25",
        ),
        ("{}", "expected lists 'nodes' and 'b64ndarrays'"),
        (document(root=7), "expected the number of one of 1 nodes, got 7"),
        (document(root=True), "expected the number of one of 1 nodes, got True"),
        (document(root=-1), "expected the number of one of 1 nodes, got -1"),
        (document({"type_key": "Array"}), "m.json, node 1: expected a Relay module, got 'Array'"),
        (document(function(99)), "m.json, node 1: expected the number of one of 2 nodes, got 99"),
        (document(function(1)), "expected a graph without cycles"),
        (document(function(2), node("relay.TupleGetItem", tuple_value=2, index=0)), "without cycles"),
        (
            document(function(2), node("relay.Let", var=3, value=5, body=2), *VARIABLE, EMPTY),
            "without cycles",
        ),
        (
            document(function(2), node("relay.Let", var=3, value=2, body=5), *VARIABLE, EMPTY),
            "without cycles",
        ),
        (document(function(2), node("relay.Let", var=3, value=3, body=2), *VARIABLE), "without cycles"),
        (
            document(function(2), node("relay.Let", var=3, value=3, body=3), EMPTY),
            "expected a variable on the left",
        ),
        (document(function(2), node("relay.Var", vid=0)), "expected a string"),
        (document(function(2), node("relay.TupleGetItem", tuple_value=1, index=0)), "without cycles"),
        (
            document(function(2), node("relay.Constant", data=0)),
            "expected one of 0 stored tensors, got number 0",
        ),
        (document(function(2), node("relay.Constant", data=0), arrays=["!"]), "expected base64 data"),
        (
            document(function(2), node("relay.Constant", data=0), arrays=["AAAA"]),
            "tensor 0: expected 16 bytes",
        ),
        (document(function(2), node("relay.Constant", data="9" * 90)), "expected an integer of 64 bits"),
        (document(function(2), node("Whatever")), "node 2: expected a Relay expression, got 'Whatever'"),
        (document(function(0)), "expected a Relay expression, got 'null'"),
        (document(node("IRModule", functions=2), node("Map", [0])), "expected keys and values in turn"),
        (document(node("IRModule", functions=2), node("Map", [0, 0])), "expected a string"),
        (
            document(
                node("IRModule", functions=2),
                {"type_key": "Map", "keys": ["main"], "data": [3]},
                node("relax.expr.Function"),
            ),
            "Relay left TVM at 0.20",
        ),
    ],
)
def test_bad_json(text, message):
    assert message in fault(text)


def test_shared_types_do_not_explode():
    pairs = [node("Array", [2 * i + 5] * 2) for i in range(60)]
    types = [node("TupleType", fields=2 * i + 4) for i in range(60)]
    nodes = [entry for pair in zip(types, pairs, strict=True) for entry in pair]
    variable = node("relay.Var", vid=125, type_annotation=3)
    names = [node("relay.Id", name_hint=126), {"type_key": "runtime.String", "repr_str": "v"}]
    leaf = [node("TupleType", fields=0), node("TupleType", fields=0)]
    text = document(function(2), variable, *nodes, *leaf, *names)
    assert "expected types of at most" in fault(text)


def test_shared_attribute_lists_do_not_explode():
    arrays = [node("Array", [4 + i] * 4) for i in range(28)]
    call = [node("relay.Call", op=3, args=0, attrs=31), {"type_key": "Op", "repr_str": "f"}]
    text = document(function(2), *call, *arrays[:27], node("relay.attrs.TransposeAttrs", axes=4))
    assert "expected attributes of at most" in fault(text)


@pytest.fixture(scope="module")
def mlp(data_dir) -> dict:
    return json.loads((data_dir / "relay" / "mlp.json").read_text())


JUNK = st.one_of(
    st.none(),
    st.integers(-2, 140),
    st.integers(0, 140).map(str),
    st.sampled_from([[], {}, True, 1.5, "9" * 60, "x", "-1", "relay.Call", "Array", [1, 2], 10**40, "inf"]),
)


@settings(max_examples=120)
@given(st.data())
def test_damaged_json_is_an_input_error_or_fine(mlp, data):
    broken = json.loads(json.dumps(mlp))
    for _ in range(data.draw(st.integers(1, 3))):
        entry = broken["nodes"][data.draw(st.integers(0, len(broken["nodes"]) - 1))]
        if isinstance(entry.get("attrs"), dict) and entry["attrs"] and data.draw(st.booleans()):
            entry["attrs"][data.draw(st.sampled_from(sorted(entry["attrs"])))] = data.draw(JUNK)
        elif isinstance(entry.get("data"), list) and entry["data"] and data.draw(st.booleans()):
            entry["data"][0] = data.draw(JUNK)
        else:
            entry[data.draw(st.sampled_from(["type_key", "data", "attrs", "repr_str", "keys"]))] = data.draw(
                JUNK
            )
    with contextlib.suppress(InputError):
        read_json(json.dumps(broken), "m")


@settings(max_examples=60)
@given(st.data())
def test_damaged_bytes_are_an_input_error_or_fine(mlp, data):
    text = json.dumps(mlp)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 40)) :]
    with contextlib.suppress(InputError):
        read_json(text, "m")


def test_stored_tensor_is_read(data_dir):
    from base64 import b64encode

    from tilewright.frontends.weights.files import save_param_dict

    value = np.arange(6, dtype="int64").reshape(2, 3)
    record = b64encode(save_param_dict({"c": value})[41:]).decode()
    constant = read_json(
        document(function(2), node("relay.Constant", data=0), arrays=[record]), "m"
    ).functions["main"]
    assert np.array_equal(constant.body.value, value)
    assert constant.body.value.dtype == value.dtype
