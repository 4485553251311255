"""Relay networks become graph-level modules: structure, values, parameters, and errors that name all."""

import json
import sys
import types

import numpy as np
import pytest

from tilewright.frontends import relay
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.frontends.tvm.rules.elementwise import BINARY, UNARY
from tilewright.frontends.weights.files import load_param_dict, save_param_dict
from tilewright.frontends.weights.random_weights import random_input
from tilewright.ir import InputError, UnsupportedError, equal, interpret, verify

HEADER = '#[version = "0.0.5"]\n'
X = "%x: Tensor[(2, 3), float32]"


def net(body: str, declared: str = X, before: str = "", **options):
    module = import_module(
        read_source(f"{HEADER}{before}def @main({declared}) {{ {body} }}", "t.relay"), **options
    )
    verify(module)
    return module


def ops(module) -> list[str]:
    return [op.name.removeprefix("graph.") for op in module.main.body.ops]


def fault(body: str, declared: str = X, before: str = "", kind: type = InputError, **options) -> str:
    with pytest.raises(kind) as error:
        net(body, declared, before, **options)
    return str(error.value)


@pytest.mark.parametrize(
    "name", ["mlp", "resnet18", "resnet50", "mobilenet", "squeezenet", "dqn", "resnet20_cifar"]
)
def test_networks_import(name, data_dir):
    module = relay.load(data_dir / "relay" / f"{name}.relay", params="random")
    verify(module)
    assert module.input_names == ("data",)
    assert all(op.loc.startswith("relay:") for op in module.main.body.ops[:-1])


@pytest.mark.parametrize("name", ["mlp", "dqn", "squeezenet", "mobilenet"])
def test_networks_compute_what_tvm_computes(name, data_dir):
    module = relay.load(data_dir / "relay" / f"{name}.relay", params="random", inputs=("data",), seed=0)
    (kind,) = module.input_types
    with np.load(data_dir / "relay" / "ref" / f"{name}.npz") as stored:
        wanted, stride = stored["out0"], int(stored["stride_out0"]) if "stride_out0" in stored else 1
    (out,) = interpret(module, random_input("data", tuple(kind.shape), "float32"))
    out = out.ravel()[::stride]
    assert np.linalg.norm(out - wanted.ravel()) < 1e-4 * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", ["mlp", "resnet20_cifar"])
def test_text_and_json_give_the_same_module(name, data_dir):
    folder = data_dir / "relay"
    text = relay.load(folder / f"{name}.relay", params=folder / f"{name}.params")
    stored = relay.load(folder / f"{name}.json", params=folder / f"{name}.params")
    assert equal(text, stored)
    assert len(text.constants) > 5


def test_location_names_operator_number_and_line():
    module = net("%0 = nn.relu(%x);\n nn.relu(%0) /* span=aten::relu_1:2:3 */")
    assert [op.loc for op in module.main.body.ops[:2]] == [
        "relay:nn.relu#0 t.relay:2",
        "relay:nn.relu#1 t.relay:3 aten::relu_1:2:3",
    ]


def test_shared_value_is_computed_once():
    assert ops(net("%0 = exp(%x); add(%0, %0)")) == ["exp", "add", "return"]


def test_lets_tuples_and_projections_vanish():
    module = net("let %p = (exp(%x), (tanh(%x), %x)); let %q = %p.1; (%q.0, %q.1)")
    assert ops(module) == ["exp", "tanh", "return"]
    assert len(module.main.result_types) == 2


def test_functions_are_inlined_with_their_surroundings():
    before = "def @twice(%f: fn (int32) -> int32, %v) { %f(%f(%v)) } "
    module = net("let %k = exp(%x); let %f = fn (%a) { add(%a, %k) }; @twice(%f, %x)", before=before)
    assert ops(module) == ["exp", "add", "add", "return"]


def test_calls_that_double_stay_linear():
    steps = "".join(f"let %f{i + 1} = fn (%a) {{ add(%f{i}(%a), %f{i}(%a)) }}; " for i in range(40))
    assert len(ops(net(f"let %f0 = fn (%a) {{ exp(%a) }}; {steps}%f40(%x)"))) == 42


def test_long_chains_and_nested_calls():
    n = 3000
    assert len(ops(net("".join(f"let %v{i} = exp(%x); " for i in range(n)) + "%x"))) == n + 1
    assert len(ops(net("exp(" * n + "%x" + ")" * n))) == n + 1


def test_conditions_choose_a_branch_or_select():
    assert ops(net("if (True) { exp(%x) } else { tanh(%x) }")) == ["exp", "return"]
    assert ops(net("if (False) { exp(%x) } else { tanh(%x) }")) == ["tanh", "return"]
    selected = net("if (%c) { exp(%x) } else { tanh(%x) }", X + ", %c: bool")
    assert ops(selected) == ["exp", "tanh", "where", "return"]
    assert "both branches" in fault("if (%c) { %x } else { %c }", X + ", %c: bool", kind=UnsupportedError)
    assert "condition of 'if'" in fault("if (%x) { %x } else { %x }", X)


def test_recursion_is_an_error():
    assert "is the function recursive?" in fault(
        "@f(%x)", before="def @f(%a) { @f(exp(%a)) } ", kind=UnsupportedError
    )


def test_batch_norm_and_dropout_give_tuples():
    vectors = "".join(f", %{n}: Tensor[(3), float32]" for n in "gbmv")
    module = net("%0 = nn.batch_norm(%x, %g, %b, %m, %v); %1 = nn.dropout(%0.0); (%1.0, %0.1)", X + vectors)
    assert ops(module) == ["batch_norm", "dropout", "return"]
    assert "mask of nn.dropout" in fault("%0 = nn.dropout(%x); exp(%0.1)", kind=UnsupportedError)


IMAGE = "%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 2, 3, 3), float32]"


@pytest.mark.parametrize(
    ("padding", "full"),
    [("[1]", (1, 1, 1, 1)), ("[1, 2]", (1, 2, 1, 2)), ("[1, 2, 3, 4]", (1, 2, 3, 4)), (None, (0, 0, 0, 0))],
)
def test_convolution_attributes(padding, full):
    given = f", padding={padding}" if padding else ""
    module = net(f"nn.conv2d(%x, %w, groups=2, channels=4, kernel_size=[3, 3]{given})", IMAGE)
    conv = module.main.body.ops[0]
    assert conv["padding"] == full
    assert conv["strides"] == conv["dilation"] == (1, 1)
    assert (conv["data_layout"], conv["kernel_layout"], conv["out_dtype"]) == ("NCHW", "OIHW", None)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("groups=2, kernel_size=[5, 5]", "expected kernel_size as the kernel has it"),
        ("groups=2, channels=7", "expected 4 channels for the kernel"),
        ("groups=2, padding=[1, 2, 3]", "expected padding of 1, 2 or 4 entries, got 3"),
        ("groups=2, stride=[1, 1]", "unknown attribute 'stride'"),
        ("groups=2, strides=1.5", "expected attribute 'strides' to be a list of integers, got 1.5"),
        ("groups=3", "nn.conv2d"),
    ],
)
def test_bad_convolution(attributes, message):
    text = fault(f"nn.conv2d(%x, %w, {attributes})", IMAGE)
    assert text.startswith("t.relay:2:")
    assert message in text


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("reshape(%x, newshape=[0, -1])", (2, 3)),
        ("reshape(%x, newshape=[-3])", (6,)),
        ("contrib_reverse_reshape(%x, newshape=[-1, 0])", (2, 3)),
        ("expand_dims(%x, axis=-1, num_newaxis=2)", (2, 3, 1, 1)),
        ("squeeze(expand_dims(%x, axis=0), axis=[0])", (2, 3)),
        ("concatenate((%x, %x), axis=-1)", (2, 6)),
        ("stack((%x, %x, %x))", (3, 2, 3)),
        ("split(%x, indices_or_sections=3, axis=1).2", (2, 1)),
        ("split(%x, indices_or_sections=[1], axis=-1).1", (2, 2)),
        ('zeros(shape=[4], dtype="int32")', (4,)),
        ("ones_like(%x)", (2, 3)),
        ('full(2f, shape=[2, 2], dtype="float32")', (2, 2)),
        ("full_like(%x, 2f)", (2, 3)),
        ("nn.leaky_relu(%x, alpha=0.1f)", (2, 3)),
        ("clip(%x, a_min=0f, a_max=6f)", (2, 3)),
        ('cast(%x, dtype="float16")', (2, 3)),
        ("nn.matmul(%x, %x, transpose_b=True)", (2, 2)),
        ("nn.dense(%x, %x, units=2)", (2, 2)),
        ("nn.softmax(%x)", (2, 3)),
        ("%x + 1f", (2, 3)),
    ],
)
def test_result_shape(call, shape):
    assert net(call).main.result_types[0].shape == shape


TWO = (*BINARY.split(), "trunc_mod", "nn.prelu", "cast_like")
ONE = (
    *UNARY.split(),
    "nn.relu",
    "copy",
    "log10",
    "log2",
    "fast_erf",
    "fast_exp",
    "fast_tanh",
    "clip",
    "cast",
)


def arity(name: str) -> int:
    return 3 if name == "where" else 2 if name in TWO else 1


@pytest.mark.parametrize("name", [*ONE, *TWO, "cast", "clip", "nn.leaky_relu", "where"])
def test_every_elementwise_rule_names_a_graph_op(name):
    kind = (
        "bool"
        if name.startswith("logical")
        else "int32"
        if "bitwise" in name or "shift" in name
        else "float32"
    )
    extra = {"clip": ", a_min=0f, a_max=1f", "cast": ', dtype="float64"', "nn.prelu": ", axis=0"}.get(
        name, ""
    )
    operands = ", ".join(["%x"] * arity(name))
    module = net(f"{name}({operands}{extra})", f"%x: Tensor[(3), {kind}]")
    assert len(module.main.body.ops) == 2


def test_all_unknown_operators_are_reported_at_once():
    text = fault(
        "foo(bar(%x),\n bar(foo(bar(%x))), match (%x) { Nil => 1 }, @gone(%x))", kind=UnsupportedError
    )
    for part in (
        "operators this version does not import: bar (at t.relay:2:",
        "foo (at t.relay:2:",
        "constructs this version does not import: Match (at t.relay:3:",
        "functions without a body: @gone (at t.relay:3:46)",
    ):
        assert part in text


def test_recorded_types_are_checked():
    assert "expected the recorded type Tensor[(2, 4), float32], got f32[2, 3]" in fault(
        "exp(%x) /* ty=Tensor[(2, 4), float32] */"
    )
    net("exp(%x) /* ty=Tensor[(2, ?), float32] */")


def test_operand_faults_name_operator_and_place():
    assert fault("add(%x, %y)", X + ", %y: Tensor[(2, 4), float32]").startswith("t.relay:2:")
    assert "exp: expected 1 arguments, got 2" in fault("exp(%x, %x)")
    assert "expected a tuple with field 3, got a tuple of 1" in fault("(%x,).3")


def test_dynamic_parameters_are_listed():
    text = fault("%a", "%a: Tensor[(?, 3), float32], %b, %c: Tensor[(1), float32]", kind=UnsupportedError)
    assert text.endswith(
        "expected parameters that are tensors of constant shape, got %a: Tensor[(?, 3), float32], %b: no type"
    )


WEIGHTS = X + ", %w: Tensor[(3), float32], %i: Tensor[(3), int64]"
VALUES = {"w": np.ones(3, "float32"), "i": np.arange(3)}


def test_parameters_are_bound_by_name():
    module = net("add(%x, %w)", WEIGHTS, params=VALUES)
    assert module.input_names == ("x",)
    assert list(module.constants) == ["w"]
    assert net("add(%x, %w)", WEIGHTS).input_names == ("x", "w", "i")
    assert net("add(%x, %w)", WEIGHTS, params="random").input_names == ("x", "i")
    assert net("add(%x, %w)", WEIGHTS, params="random", inputs=("x", "w")).input_names == ("x", "w")


def test_indices_behind_the_first_parameter_may_be_inputs():
    declared = f"{X}, %ids: Tensor[(3), int64], %w: Tensor[(3), float32], %b: Tensor[(3), float32]"
    given = {"w": np.ones(3, "float32"), "b": np.ones(3, "float32")}
    assert net("add(%x, %w)", declared, params=given).input_names == ("x", "ids")
    assert net("add(%x, %w)", declared, params={**given, "ids": np.arange(3)}).input_names == ("x",)
    assert net("add(%x, %w)", declared, params=given, inputs=("x", "ids", "b")).input_names == (
        "x",
        "ids",
        "b",
    )
    eight_bits = declared.replace("int64", "int8")
    assert "no value is given for 'ids'" in fault("add(%x, %w)", eight_bits, params=given)


def test_states_of_tuple_type_may_be_inputs():
    declared = "%s: (Tensor[(3), float32], Tensor[(3), float32]), %w: Tensor[(3), float32]"
    given = {"w": np.ones(3, "float32")}
    assert net("add(%s.0, %w)", declared, params=given).input_names == ("s.0", "s.1")


def test_long_lists_of_missing_parameters_are_cut():
    declared = ", ".join(f"%p{i}: Tensor[(3), float32]" for i in range(20))
    assert "'p8' and 11 more" in fault("%p0", declared, params={})


def test_parameters_of_tuple_type_become_their_leaves():
    module = net("add(%s.0, %s.1.0)", "%s: (Tensor[(3), float32], (Tensor[(3), float32],))")
    assert module.input_names == ("s.0", "s.1.0")


@pytest.mark.parametrize(
    ("params", "inputs", "message"),
    [
        ({**VALUES, "u": np.ones(1), "v": np.ones(1)}, None, "@main has no parameter 'u', 'v'"),
        ({"w": VALUES["w"]}, ("x",), "no value is given for 'i'"),
        ({"w": VALUES["w"]}, None, "no value is given for 'i' (name the inputs with --inputs or inputs=)"),
        ({"i": VALUES["i"]}, None, "no value is given for 'w' (name"),
        ({}, None, "no value is given for 'w', 'i' (name"),
        (None, ("x",), "no value is given for 'w', 'i'"),
        (
            {"w": np.ones(4, "float32"), "i": np.ones(3)},
            None,
            "'w' is declared Tensor[(3), float32], got float32[4]; 'i'",
        ),
        ("random", ("y", "z"), "expected inputs among the parameters of @main (x, w, i), got y, z"),
        ([], None, "expected params to be None, 'random', a path or a dict of arrays, got list"),
    ],
)
def test_wrong_parameters_are_all_named(params, inputs, message):
    assert message in fault("add(%x, %w)", WEIGHTS, params=params, inputs=inputs)


def test_seed_changes_random_parameters(data_dir):
    path = data_dir / "relay" / "mlp.relay"
    first, second = (relay.load(path, params="random", seed=s).constants["fc1_bias"] for s in (0, 1))
    assert not np.array_equal(first, second)


def test_unreadable_files(tmp_path):
    for name, content, message in [
        ("none", None, "cannot read the network: No such file"),
        ("empty", b" \n", "expected Relay text or JSON, got an empty file"),
        ("bytes", save_param_dict({}), "in UTF-8, got other bytes"),
    ]:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            relay.load(path)


def fake_tvm(monkeypatch, **contents):
    module = types.ModuleType("tvm")
    for name, value in contents.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "tvm", module)
    return type("IRModule", (), {"__module__": "tvm.ir.module"})()


def test_live_module_goes_through_json(monkeypatch, data_dir):
    folder = data_dir / "relay"
    stored = (folder / "mlp.json").read_text()
    ir = types.SimpleNamespace(save_json=lambda mod: stored)
    mod = fake_tvm(monkeypatch, relay=object(), ir=ir)
    params = load_param_dict((folder / "mlp.params").read_bytes())
    wrapped = {name: types.SimpleNamespace(numpy=lambda a=array: a) for name, array in params.items()}
    live = relay.from_module(mod, wrapped)
    assert equal(live, import_module(read_source(stored, "module"), params))
    assert json.loads(stored)["attrs"]["tvm_version"] == "0.18.0"


def test_live_module_of_a_tvm_without_relay(monkeypatch):
    mod = fake_tvm(monkeypatch, __version__="0.27.0")
    with pytest.raises(InputError, match=r"got 0\.27\.0: Relay left TVM at 0\.20.*read it with relay\.load"):
        relay.from_module(mod, {})
    with pytest.raises(InputError, match=r"expected a tvm\.IRModule, got builtins\.int"):
        relay.from_module(3, {})


def test_extents_that_a_type_cannot_hold_are_refused():
    large, long = "%x: Tensor[(70000, 70000), float32]", "%x: Tensor[(5000000000, 2), float32]"
    assert "expected a type that holds 4900000000, got i32" in fault('ndarray_size(%x, dtype="int32")', large)
    assert "expected a type that holds 5000000000, got i32" in fault('shape_of(%x, dtype="int32")', long)
    (size,) = net('ndarray_size(%x, dtype="int64")', large).constants.values()
    assert size == 70000**2


@pytest.mark.parametrize("params", [None, "random"])
def test_ranks_beyond_numpys_are_refused(params):
    declared = f"{X}, %w: Tensor[({', '.join(['1'] * 65)}), float32]"
    assert "expected at most 64 dimensions, got 65" in fault("nn.relu(%w)", declared, params=params)
