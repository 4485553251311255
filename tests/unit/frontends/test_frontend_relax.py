"""Relax modules: functions, tuples, conditions, parameters, and one error for all that is in the way."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.ir.types import TensorType, dtype_name  # noqa: E402

op = relax.op
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def tensor(*shape, dtype="float32"):
    # 0.25 calls types structure information
    return getattr(relax, "TensorStructInfo", relax.TensorType)(shape, dtype)


def run(module, *inputs, **options):
    return tw.interpret(tw.frontends.relax.from_module(module, **options), *inputs)


def two_functions():
    """@main(x, w) calls @helper(x) twice and returns nested tuples."""
    builder = relax.BlockBuilder()
    y = relax.Var("y", tensor(2, 3))
    with builder.function("helper", [y]):
        builder.emit_func_output(builder.emit(op.add(y, relax.const(1.0))))
    helper = builder.get().get_global_var("helper")
    x, w = relax.Var("x", tensor(2, 3)), relax.Var("w", tensor(3, 4))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            first = builder.emit(relax.Call(helper, [x]))
            pair = builder.emit(relax.Tuple([first, x]))
            second = builder.emit(relax.Call(helper, [relax.TupleGetItem(pair, 0)]))
            out = builder.emit_output(relax.Tuple([second, relax.Tuple([op.matmul(x, w), x])]))
        builder.emit_func_output(out)
    return builder.get()


def test_calls_are_inlined_and_tuples_flattened():
    w = np.ones((3, 4), np.float32)
    module = tw.frontends.relax.from_module(two_functions())
    assert [op.name for op in module.main.body.ops].count("graph.add") == 2
    results = tw.interpret(module, X, w)
    for got, wanted in zip(results, (X + 2, X @ w, X), strict=True):
        np.testing.assert_allclose(got, wanted)


def test_another_function_can_be_the_network():
    np.testing.assert_allclose(run(two_functions(), X, function="helper")[0], X + 1)


def test_a_place_names_function_and_binding():
    places = {op.loc for op in tw.frontends.relax.from_module(two_functions()).main.body.ops}
    assert any(place.startswith("relax:add#0 @helper.") for place in places)
    assert any(place.startswith("relax:matmul#0 @main.") for place in places)


@pytest.mark.parametrize(
    "params",
    [
        lambda w: {"w": w},
        lambda w: [w],
        lambda w: {"main": [w]},
        lambda w: {"w": tvm.runtime.tensor(w)},
    ],
)
def test_parameters_become_constants(params):
    w = np.full((3, 4), 2, np.float32)
    module = tw.frontends.relax.from_module(two_functions(), params(w))
    assert len(module.main.body.params) == 1
    np.testing.assert_array_equal(module.constants["w"], w)
    np.testing.assert_allclose(tw.interpret(module, X)[1], X @ w)


def three_parameters(count=None):
    """x + y + w, of which TVM's importer says that the first `count` are inputs."""
    builder = relax.BlockBuilder()
    x, y, w = (relax.Var(n, tensor(2, 3)) for n in "xyw")
    with builder.function("main", [x, y, w]):
        builder.emit_func_output(builder.emit(op.add(op.add(x, y), w)))
    module = builder.get()
    if count is not None:
        module["main"] = module["main"].with_attr("num_input", count)
    return module


def test_a_missing_parameter_is_an_error():
    load = tw.frontends.relax.from_module
    with pytest.raises(tw.InputError, match=r"no value is given for 'y' \(name the inputs with .*inputs="):
        load(three_parameters(), {"w": X})
    with pytest.raises(tw.InputError, match="no value is given for 'y'"):
        load(three_parameters(1), {"w": X})
    assert load(three_parameters(2), {"w": X}).input_names == ("x", "y")
    assert load(three_parameters(), {"w": X}, inputs=("x", "y")).input_names == ("x", "y")
    assert load(three_parameters(), [X]).input_names == ("x", "y")
    assert load(three_parameters()).input_names == ("x", "y", "w")


def test_parameters_that_tvm_attached_are_bound():
    module, w = two_functions(), np.ones((3, 4), np.float32)
    module["main"] = module["main"].with_attr("params", [tvm.runtime.tensor(w)])
    assert len(tw.frontends.relax.from_module(module).main.body.params) == 1


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"v": X}, "'v'"),
        ({"w": X}, "'w' is declared"),
        ([X, X, X], "at most 2 parameters"),
        ("weights", "got str"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(params, message):
    with pytest.raises(tw.InputError, match=message):
        tw.frontends.relax.from_module(two_functions(), params)


def test_bindings_outside_dataflow_and_a_condition_that_is_known():
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor(2, 3))
    with builder.function("main", [x]):
        y = builder.emit(op.negative(x))
        branches = [relax.SeqExpr([], y), relax.SeqExpr([], x)]
        out = builder.emit(relax.If(relax.const(True, "bool"), *branches))
        builder.emit_func_output(out)
    np.testing.assert_array_equal(run(builder.get(), X)[0], -X)


def test_a_condition_on_data_selects():
    builder = relax.BlockBuilder()
    x, c = relax.Var("x", tensor(2, 3)), relax.Var("c", tensor(dtype="bool"))
    with builder.function("main", [x, c]):
        y = builder.emit(relax.op.negative(x))
        out = builder.emit(relax.If(c, relax.SeqExpr([], y), relax.SeqExpr([], x)))
        builder.emit_func_output(out)
    for condition in (True, False):
        got = run(builder.get(), X, np.asarray(condition))[0]
        np.testing.assert_array_equal(got, -X if condition else X)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "bool"])
def test_dtypes_survive(dtype):
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor(2, 3, dtype=dtype))
    with builder.function("main", [x]):
        constant = relax.const(X.astype(bool) if dtype == "bool" else X, dtype)
        builder.emit_func_output(builder.emit(op.concat([x, constant], 0)))
    module = tw.frontends.relax.from_module(builder.get())
    (kind,) = module.main.result_types
    (array,) = (np.asarray(module.constants[name]) for name in module.constants)
    assert (str(array.dtype), kind) == (dtype, TensorType(dtype_name(dtype), (4, 3)))


def test_everything_in_the_way_is_told_at_once():
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", tensor(n, 3))
    with builder.function("main", [x]):
        a = builder.emit(op.nn.relu(x))
        called = relax.ExternFunc("my.packed")
        b = builder.emit(op.call_dps_packed(called, relax.Tuple([a]), tensor(n, 3)))
        c = builder.emit(op.unique(op.flatten(b)))
        d = builder.emit(op.unique(c))
        e = builder.emit_te(lambda t: tvm.te.compute(t.shape, lambda *at: t[at] + 1.0), b)
        builder.emit_func_output(relax.Tuple([d, e]))
    with pytest.raises(tw.UnsupportedError) as caught:
        tw.frontends.relax.from_module(builder.get())
    message = str(caught.value)
    assert 'call_dps_packed of packed function "my.packed" (at @main.' in message
    assert "unique (at @main." in message
    assert "call_tir of @" in message
    assert "dimensions that are not constant: n (at @main.x, @main." in message


@pytest.mark.parametrize("module", [None, {}, "x"])
def test_what_is_no_module_of_tvm_is_refused(module):
    with pytest.raises(tw.InputError, match=r"expected a tvm\.IRModule"):
        tw.frontends.relax.from_module(module)


def test_a_function_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(tw.InputError, match="@predict, got @helper, @main"):
        tw.frontends.relax.from_module(two_functions(), function="predict")


def test_a_function_that_calls_itself_is_refused():
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor(2, 3))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.negative(x)))
    module = builder.get()
    variable = module.get_global_var("main")
    y = relax.Var("y", tensor(2, 3))
    z = relax.Var("z", tensor(2, 3))
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(z, relax.Call(variable, [y]))])], z)
    module["main"] = relax.Function([y], body, tensor(2, 3))
    with pytest.raises(tw.UnsupportedError, match="recursive"):
        tw.frontends.relax.from_module(module)


def test_it_compiles():
    w = np.ones((3, 4), np.float32)
    module = tw.frontends.relax.from_module(two_functions(), {"w": w})
    with tw.compile(module, target="opencl") as network:
        np.testing.assert_allclose(network(X)[1], X @ w, rtol=1e-5)


def test_bound_parameters_are_those_of_training_and_constants_are_not():
    builder = relax.BlockBuilder()
    x, w, mean = (relax.Var(n, tensor(*s)) for n, s in (("x", (2, 3)), ("w", (2, 3)), ("mean", (3,))))
    with builder.function("main", [x, w, mean]):
        y = builder.emit(op.multiply(op.add(x, w), relax.const(np.ones(3, np.float32))))
        ones = relax.const(np.ones(3, np.float32))
        norm = op.nn.batch_norm(y, ones, ones, mean, ones, axis=1)
        builder.emit_func_output(builder.emit(relax.TupleGetItem(norm, 0)))
    arrays = {"w": X, "mean": X[0]}
    module = tw.frontends.relax.from_module(builder.get(), params=arrays, inputs=["x"])
    assert module.parameters == ("w",)


def test_dropout_is_kept_to_be_trained():
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor(2, 3))
    with builder.function("main", [x]):
        both = builder.emit(op.nn.dropout(x, 0.25))
        builder.emit_func_output(builder.emit(relax.TupleGetItem(both, 0)))
    module = tw.frontends.relax.from_module(builder.get())
    assert [o["rate"] for o in module.main.body.ops if o.name == "graph.dropout"] == [0.25]
