"""Passes on the graph level: each keeps what the reference interpreter computes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir import Constants, InputError, Module, interpret, parse, verify
from tilewright.ir.nodes import walk
from tilewright.passes import PassContext, Pipeline, run_pipeline

CTX = PassContext(verify_each=True, reproducer_folder=None)


def net(body: str, arguments: str, result: str, **constants: np.ndarray) -> Module:
    text = f"module @net {{ graph.func @main({arguments}) -> {result} {{ {body} }} }}"
    module = parse(text, constants=Constants(constants))
    verify(module)
    return module


def run(text: str, module: Module) -> Module:
    return run_pipeline(module, Pipeline.parse(text), CTX)


def ops(module: Module) -> Counter[str]:
    return Counter(op.name.partition(".")[2] for op in walk(module.main.body))


def assert_same_results(before: Module, after: Module, *, exact: bool = False) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.shape).astype(t.dtype) for t in before.input_types]
    for a, b in zip(interpret(before, *inputs), interpret(after, *inputs), strict=True):
        assert a.dtype == b.dtype
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * float(np.abs(a).max()))


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def statistics(channels: int) -> dict[str, np.ndarray]:
    """gamma, beta, mean and a positive variance."""
    parts = {k: random(channels, seed=i) for i, k in enumerate(["gamma", "beta", "mean", "var"])}
    return {**parts, "var": np.abs(parts["var"]) + np.float32(0.1)}


def constants_of(**shapes: str) -> str:
    return "\n".join(f'%{k} = graph.constant(name = "{k}") : {t}' for k, t in shapes.items())


# -- infer-shapes


def test_wrong_types_are_put_right_down_to_the_result():
    text = """module @m { graph.func @main(%x: f32[2, 3]) -> f32[9] {
        %0 = graph.relu(%x) : f32[9]
        %1 = graph.abs(%0) : f32[9]
        graph.return(%1)
    } }"""
    fixed = run("infer-shapes", parse(text))
    verify(fixed)
    assert [str(t) for t in fixed.main.result_types] == ["f32[2, 3]"]
    assert run("infer-shapes{mode=check}", fixed) is fixed
    with pytest.raises(
        InputError, match=r"at graph.relu: expected results of type f32\[2, 3\], got f32\[9\]"
    ):
        run("infer-shapes{mode=check}", parse(text))


def test_operands_that_do_not_fit_name_the_op():
    text = """module @m { graph.func @main(%x: f32[2, 3], %y: f32[5]) -> f32[2, 3] {
        %0 = graph.add(%x, %y) : f32[2, 3] loc "relay:add#7"
        graph.return(%0)
    } }"""
    with pytest.raises(InputError, match=r"'infer-shapes' \(1 of 1\) failed at graph.add \[relay:add#7\]"):
        run("infer-shapes", parse(text))


# -- fold-constants


def test_constants_fold_through_chains_with_names_that_tell_their_origin():
    body = constants_of(w="f32[2, 3]", v="f32[3, 2]")
    body += """
        %0 = graph.reshape(%w, newshape = [3, 2]) : f32[3, 2]
        %1 = graph.add(%0, %v) : f32[3, 2]
        %2 = graph.multiply(%x, %1) : f32[3, 2]
        graph.return(%2)"""
    module = net(body, "%x: f32[3, 2]", "f32[3, 2]", w=random(2, 3), v=random(3, 2))
    folded = run("fold-constants, dce", module)
    assert ops(folded) == {"constant": 1, "multiply": 1, "return": 1}
    assert list(folded.constants) == ["w.reshape.add"]
    np.testing.assert_array_equal(
        folded.constants["w.reshape.add"], module.constants["w"].reshape(3, 2) + module.constants["v"]
    )
    assert_same_results(module, folded, exact=True)
    assert run("fold-constants", folded) is folded


def test_large_results_and_unknown_arrays_are_left_alone():
    body = (
        constants_of(w="f32[4]")
        + """
        %0 = graph.abs(%w) : f32[4]
        graph.return(%0)"""
    )
    module = net(body, "", "f32[4]", w=random(4))
    assert run("fold-constants{max_elements=3}", module) is module
    assert ops(run("fold-constants{max_elements=4}", module)) == {"constant": 1, "return": 1}
    without_data = module.with_constants(Constants())
    assert run("fold-constants", without_data) is without_data


# -- cse and dce


def test_equal_ops_merge_and_others_do_not():
    module = net(
        """
        %0 = graph.clip(%x, a_min = 0.0, a_max = 1.0) : f32[3]
        %1 = graph.clip(%x, a_min = 0.0, a_max = 1.0) : f32[3]
        %2 = graph.clip(%x, a_min = -0.0, a_max = 1.0) : f32[3]
        %3 = graph.add(%0, %1) : f32[3]
        %4 = graph.add(%1, %0) : f32[3]
        %5 = graph.multiply(%3, %4) : f32[3]
        %6 = graph.multiply(%5, %2) : f32[3]
        graph.return(%6)""",
        "%x: f32[3]",
        "f32[3]",
    )
    merged = run("cse", module)
    assert ops(merged) == {"clip": 2, "add": 1, "multiply": 2, "return": 1}
    assert_same_results(module, merged, exact=True)
    assert run("cse", merged) is merged


def scaled_maps(second: str) -> Module:
    """Two maps that double their operand, the second by the given body."""
    one = """{ ^(%a: f32)  %two = scalar.const(value = 2.0, dtype = "f32") : f32
        %b = scalar.mul(%a, %two) : f32
        scalar.yield(%b) }"""
    return parse(f"""module @m {{ tensor.func @main(%x: f32[4]) -> f32[4], f32[4] {{
        %0 = tensor.map(%x, par = (i: 4), reads = [[i]]) : f32[4] {one}
        %1 = tensor.map(%x, par = (i: 4), reads = [[i]]) : f32[4] {second or one}
        tensor.return(%0, %1)
    }} }}""")


def test_bodies_are_compared_and_cleaned():
    same = scaled_maps("")
    assert ops(run("cse", same))["map"] == 1
    other = scaled_maps("""{ ^(%c: f32)
        %three = scalar.const(value = 3.0, dtype = "f32") : f32
        %again = scalar.const(value = 3.0, dtype = "f32") : f32
        %unused = scalar.exp(%c) : f32
        %d = scalar.mul(%c, %again) : f32
        %e = scalar.mul(%d, %three) : f32
        scalar.yield(%e) }""")
    cleaned = run("cse, dce", other)
    assert ops(cleaned) == {"map": 2, "const": 2, "mul": 3, "yield": 2, "return": 1}
    assert_same_results(other, cleaned, exact=True)
    assert run("cse, dce", cleaned) is cleaned


def test_dead_chains_and_unnamed_constants_go():
    body = (
        constants_of(w="f32[3]", dead="f32[3]")
        + """
        %0 = graph.add(%x, %dead) : f32[3]
        %1 = graph.exp(%0) : f32[3]
        %2 = graph.add(%x, %w) : f32[3]
        graph.return(%2)"""
    )
    module = net(body, "%x: f32[3]", "f32[3]", w=random(3), dead=random(3), nowhere=random(3))
    cleaned = run("dce", module)
    assert ops(cleaned) == {"constant": 1, "add": 1, "return": 1}
    assert list(cleaned.constants) == ["w"]
    assert_same_results(module, cleaned, exact=True)


# -- fold-batch-norm and fold-scale-axis

FOLD = "fold-batch-norm, fold-scale-axis, fold-constants, dce"
NORM = "graph.batch_norm(%y, %gamma, %beta, %mean, %var, axis = {axis}, epsilon = 0.001)"


def normalised(y: str, y_type: str, x_type: str, channels: int, axis: int, **weights: np.ndarray) -> Module:
    shapes = {k: f"f32[{', '.join(map(str, w.shape))}]" for k, w in weights.items()}
    stats = dict.fromkeys(("gamma", "beta", "mean", "var"), f"f32[{channels}]")
    body = (
        constants_of(**shapes, **stats)
        + f"""
        {y}
        %z = {NORM.format(axis=axis)} : {y_type}
        %r = graph.relu(%z) : {y_type}
        graph.return(%r)"""
    )
    return net(body, f"%x: {x_type}", y_type, **weights, **statistics(channels))


CONVOLUTIONS = {
    "nchw": ("", (1, 3, 5, 5), (1, 4, 3, 3), (4, 3, 3, 3), 1),
    "grouped": ("groups = 2", (1, 4, 5, 5), (1, 6, 3, 3), (6, 2, 3, 3), 1),
    "depthwise": ("groups = 4", (1, 4, 5, 5), (1, 4, 3, 3), (4, 1, 3, 3), 1),
    "nhwc": ('data_layout = "NHWC", kernel_layout = "HWIO"', (1, 5, 5, 3), (1, 3, 3, 4), (3, 3, 3, 4), 3),
}


def type_of(shape: tuple[int, ...]) -> str:
    return f"f32[{', '.join(map(str, shape))}]"


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_batch_norm_goes_into_the_weights_of_a_convolution(kind):
    attributes, x, y, w, axis = CONVOLUTIONS[kind]
    arguments = ", ".join(filter(None, ["%x", "%w", attributes]))
    module = normalised(
        f"%y = graph.conv2d({arguments}) : {type_of(y)}", type_of(y), type_of(x), y[axis], axis, w=random(*w)
    )
    folded = run(FOLD, module)
    assert ops(folded) == {"constant": 2, "conv2d": 1, "add": 1, "relu": 1, "return": 1}
    assert_same_results(module, folded)
    assert run(FOLD, folded) is folded


def test_batch_norm_after_bias_and_dense():
    module = normalised(
        "%d = graph.dense(%x, %w) : f32[2, 4]\n %y = graph.bias_add(%d, %b, axis = 1) : f32[2, 4]",
        "f32[2, 4]", "f32[2, 3]", 4, 1, w=random(4, 3), b=random(4),
    )  # fmt: skip
    folded = run(FOLD, module)
    assert ops(folded)["multiply"] == 0
    assert ops(folded)["batch_norm"] == 0
    assert_same_results(module, folded)


def test_a_convolution_with_another_use_keeps_its_weights():
    module = normalised(
        "%y = graph.conv2d(%x, %w) : f32[1, 4, 3, 3]",
        "f32[1, 4, 3, 3]",
        "f32[1, 3, 5, 5]",
        4,
        1,
        w=random(4, 3, 3, 3),
    )
    *others, last = module.main.body.ops
    conv = next(op for op in others if op.name == "graph.conv2d")
    returned = (*last.operands, conv.result)
    body = module.main.body.with_ops((*others, last.with_operands(returned)))
    main = replace(module.main, body=body, result_types=tuple(v.type for v in returned))
    module = module.with_funcs((main,))
    folded = run(FOLD, module)
    assert ops(folded) == {"constant": 3, "conv2d": 1, "multiply": 1, "add": 1, "relu": 1, "return": 1}
    assert_same_results(module, folded)


def test_statistics_that_are_inputs_stay():
    stats = ", ".join(f"%{k}: f32[3]" for k in ("gamma", "beta", "mean", "var"))
    module = net(
        f"%z = {NORM.format(axis=1)} : f32[2, 3]\n graph.return(%z)", f"%y: f32[2, 3], {stats}", "f32[2, 3]"
    )
    assert run(FOLD, module) is module


def test_a_factor_along_another_dimension_stays():
    body = (
        constants_of(w="f32[4, 3, 1, 1]", s="f32[5]")
        + """
        %y = graph.conv2d(%x, %w) : f32[1, 4, 5, 5]
        %z = graph.multiply(%y, %s) : f32[1, 4, 5, 5]
        graph.return(%z)"""
    )
    module = net(body, "%x: f32[1, 3, 5, 5]", "f32[1, 4, 5, 5]", w=random(4, 3, 1, 1), s=random(5))
    assert run("fold-scale-axis", module) is module
