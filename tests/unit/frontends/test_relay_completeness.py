"""Relay's syntax and the operators that only some networks have: what imports, what it computes, what is said
about the rest."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.frontends.relay.load import RULES, import_module, read_source
from tilewright.ir import InputError, UnsupportedError

HEADER = '#[version = "0.0.5"]\n'
X = np.arange(6, dtype=np.float32).reshape(2, 3)
PARAM = "%x0: Tensor[(2, 3), float32]"


def load(text, header=HEADER):
    module = import_module(read_source(header + text, "t.relay"))
    tw.verify(module)
    return module


def run(body, *arrays):
    arrays = [np.asarray(a) for a in arrays]
    shapes = [", ".join(map(str, a.shape)) for a in arrays]
    params = ", ".join(
        f"%x{i}: Tensor[({s}), {a.dtype}]" for i, (s, a) in enumerate(zip(shapes, arrays, strict=True))
    )
    return tw.interpret(load(f"def @main({params}) {{ {body} }}"), *arrays)


LOOP = """
  let %loop = fn (%i: int32, %y: Tensor[(2, 3), float32]) -> (int32, Tensor[(2, 3), float32]) {
    if (less(%i, 3)) { %loop(add(%i, 1), multiply(%y, 2f)) } else { (%i, %y) }
  };
  %0 = %loop(0, %x0);
  %0.1
"""
BODIES = {
    "let": ("let %a = add(%x0, 1f); let %b = multiply(%a, %a); %b", (X + 1) ** 2),
    "let hides": ("let %x0 = add(%x0, 1f); let %x0 = add(%x0, 1f); %x0", X + 2),
    "closure": (
        "let %f = fn (%y: Tensor[(2, 3), float32]) { add(%y, %x0) }; %f(%f(%x0))",
        3 * X,
    ),
    "called at once": ("fn (%y: Tensor[(2, 3), float32]) { negative(%y) }(%x0)", -X),
    "curried": (
        "let %g = fn (%y: Tensor[(2, 3), float32]) { fn (%z: Tensor[(2, 3), float32]) { subtract(%y, %z) } };"
        " %g(%x0)(add(%x0, 1f))",
        -np.ones_like(X),
    ),
    "function attributes": (
        '%0 = fn (%y: Tensor[(2, 3), float32], Primitive=1, hash="ab") -> Tensor[(2, 3), float32] '
        "{ negative(%y) }; %0(%x0)",
        -X,
    ),
    "operator as a value": ("let %f = negative; %f(%x0)", -X),
    "if on a comparison of constants": ("if (less(1, 2)) { add(%x0, 1f) } else { %x0 }", X + 1),
    "if on a shape": (
        "if (equal(take(shape_of(%x0), 0, axis=0), 2)) { add(%x0, 1f) } else { transpose(%x0) }",
        X + 1,
    ),
    "if on data": ("if (less(max(%x0), 2f)) { add(%x0, 1f) } else { %x0 }", X),
    "if on data, with tuples": (
        "%0 = if (less(max(%x0), 9f)) { (add(%x0, 1f), %x0) } else { (%x0, %x0) }; add(%0.0, %0.1)",
        2 * X + 1,
    ),
    "loop with a known end": (LOOP, 8 * X),
    "nested tuples": (
        "%0 = ((%x0, add(%x0, 1f)), (%x0,)); %1 = %0.0; add(%1.1, %0.1.0)",
        2 * X + 1,
    ),
    "None": ("sum(%x0, axis=None)", X.sum()),
    "nullptr": ("squeeze(%x0, axis=nullptr)", X),
    "nested tuples of numbers": ("nn.pad(%x0, 0f, pad_width=((1, 1), (0, 2)))", np.pad(X, ((1, 1), (0, 2)))),
    "annotations": (
        'annotation.compiler_end(annotation.compiler_begin(annotation.checkpoint(%x0), compiler="cutlass"), '
        'compiler="cutlass")',
        X,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_syntax(name):
    body, wanted = BODIES[name]
    (got,) = run(body, X)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("literal", "dtype", "value"),
    [
        ("1.5f", "float32", 1.5),
        ("2f16", "float16", 2),
        ("0.1f64", "float64", 0.1),
        ("-2", "int32", -2),
        ("3000000000", "int64", 3000000000),
        ("7i64", "int64", 7),
        ("3i8", "int8", 3),
        ("True", "bool", True),
        ("nanf", "float32", np.nan),
        ("-inff", "float32", -np.inf),
        ("inff16", "float16", np.inf),
    ],
)
def test_literals(literal, dtype, value):
    _, got = run(f"(%x0, {literal})", X)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.asarray(value, dtype))


METADATA = """

#[metadata]
{"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Map", "keys": ["VirtualDevice"], "data": [2]},
{"type_key": "Array", "data": [3]}, {"type_key": "VirtualDevice", "attrs": {"device_type_int": "1",
"memory_scope": "4", "target": "0", "virtual_device_id": "0"}}, {"type_key": "runtime.String",
"repr_str": ""}], "b64ndarrays": [], "attrs": {"tvm_version": "0.18.0"}}"""


def test_devices_are_remarks():
    body = "on_device(%x0, virtual_device=meta[VirtualDevice][0], constrain_result=True)"
    param = "%x0 {virtual_device=meta[VirtualDevice][0]}: Tensor[(2, 3), float32]"
    module = load(f"def @main({param}, virtual_device=meta[VirtualDevice][0]) {{ {body} }}{METADATA}")
    np.testing.assert_array_equal(tw.interpret(module, X)[0], X)


def test_global_functions_type_variables_and_several_results():
    module = load(
        "def @id[A](%y: A) -> A { %y }\n"
        'def @part_0(%y: Tensor[(2, 3), float32], Compiler="cutlass", Primitive=1, global_symbol="part_0") '
        "{ (negative(%y), transpose(%y)) }\n"
        f"def @main({PARAM}) -> (Tensor[(2, 3), float32], Tensor[(3, 2), float32]) {{ @part_0(@id(%x0)) }}"
    )
    first, second = tw.interpret(module, X)
    np.testing.assert_array_equal(first, -X)
    np.testing.assert_array_equal(second, X.T)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (f"def @main({PARAM}) {{ random.normal(%x0, 0f, 1f) }}", UnsupportedError, "draws random numbers"),
        (f"def @main({PARAM}) {{ vm.shape_of(%x0) }}", UnsupportedError, "save the module before it"),
        (f"def @main({PARAM}) {{ ref(%x0) }}", UnsupportedError, "RefCreate"),
        (f"def @main({PARAM}) {{ nn.softmax(%x0, axis=1, foo=3) }}", InputError, "unknown attribute 'foo'"),
        (
            "def @main(%a: Tensor[(?, 3), float32], %b: Tensor[(2, ?), float32]) { add(%a, %b) }",
            UnsupportedError,
            r"%a: Tensor\[\(\?, 3\), float32\], %b",
        ),
        (
            "def @main(%f: fn (Tensor[(2), float32]) -> Tensor[(2), float32], %x: Tensor[(2), float32]) "
            "{ %f(%x) }",
            UnsupportedError,
            "%f: fn",
        ),
        (
            f"def @main({PARAM}) {{ let %f = fn (%y: Tensor[(2, 3), float32]) "
            "{ if (less(max(%y), 3f)) { %f(multiply(%y, 2f)) } else { %y } }; %f(%x0) }",
            UnsupportedError,
            "loops that data ends",
        ),
        (
            f"def @main({PARAM}) {{ if (less(max(%x0), 2f)) {{ %x0 }} else {{ transpose(%x0) }} }}",
            UnsupportedError,
            "both branches",
        ),
    ],
)
def test_errors(text, kind, said):
    with pytest.raises(kind, match=said):
        load(text)


@pytest.mark.parametrize("header", ["v0.0.4\n", '#[version = "0.0.4"]\n'])
def test_old_versions(header):
    with pytest.raises(InputError, match=r"version 0\.0\.5, got 0\.0\.4"):
        load(f"def @main({PARAM}) {{ %x0 }}", header)


def test_numbers():
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 8388609.0], np.float32)
    (got,) = run("round(%x0)", x)
    np.testing.assert_array_equal(got, [-3, -2, -1, 1, 2, 3, 0, 8388609])
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    np.testing.assert_array_equal(run("trunc_divide(%x0, %x1)", a, b)[0], [3, -3, -3, 3])
    np.testing.assert_array_equal(run("trunc_mod(%x0, %x1)", a, b)[0], [1, -1, 1, -1])
    np.testing.assert_array_equal(run('reinterpret(%x0, dtype="uint32")', a)[0], a.view(np.uint32))
    np.testing.assert_array_equal(run('(%x0, reinterpret(1f, dtype="int32"))', a)[1], 0x3F800000)


def test_operators_with_operands_for_attributes():
    (got,) = run("dyn.one_hot(%x0, 1f, 0f, 3, axis=-1)", np.array([0, 2], np.int32))
    np.testing.assert_array_equal(got, np.eye(3, dtype=np.float32)[[0, 2]])
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    packed = w.reshape(2, 2, 3).transpose(0, 2, 1)
    (got,) = run('nn.contrib_dense_pack(%x0, %x1, units=4, weight_layout="NC2n")', X, packed)
    np.testing.assert_array_equal(got, X @ w.T)


def test_what_is_left_of_the_operators():
    """The operators of TVM 0.18 that networks are made of are there."""
    for name in ("nn.conv2d", "nn.batch_matmul", "qnn.conv2d", "dyn.strided_slice", "vision.yolo_reorg"):
        assert name in RULES
    assert len(RULES) > 260


def unrolled(steps, width=8):
    """An LSTM with shared weights, one sequence, its steps one after the other."""
    shapes = {"x": (1, steps, width), "h": (1, width), "c": (1, width), "u": (4 * width, width),
              "w": (4 * width, width)}  # fmt: skip
    params = ", ".join(f"%{k}: Tensor[{v}, float32]" for k, v in shapes.items())
    lines, h, c, outs = [f"let %xs = split(%x, indices_or_sections={steps}, axis=1);"], "%h", "%c", []
    for t in range(steps):
        lines += [
            f"let %g{t} = split(add(nn.dense(squeeze(%xs.{t}, axis=[1]), %u), nn.dense({h}, %w)), "
            "indices_or_sections=4, axis=1);",
            f"let %c{t} = add(multiply(sigmoid(%g{t}.1), {c}), multiply(sigmoid(%g{t}.0), tanh(%g{t}.2)));",
            f"let %h{t} = multiply(sigmoid(%g{t}.3), tanh(%c{t}));",
        ]
        h, c = f"%h{t}", f"%c{t}"
        outs.append(h)
    body = "\n".join([*lines, f"stack(({', '.join(outs)}), axis=1)"])
    return load(f"def @main({params}) {{\n{body}\n}}")


def test_steps_of_an_unrolled_network_share_kernels():
    """Only the product with another slice of the input is another kernel in every step.

    On a GPU without clusters, whose blocks cannot keep the weights for all steps.
    """
    kernels, launches = [], []
    for steps in (4, 8):
        lowered = lower(unrolled(steps), resolve_target("cuda:sm_80"))
        kernels.append(len(lowered.sources))
        launches.append(sum(op.name == "tensor.call" for op in lowered.thread.main.body.ops))
    assert kernels[1] - kernels[0] <= 4
    assert launches[1] - launches[0] >= 12
    module = unrolled(3)
    inputs = [np.random.default_rng(0).uniform(-1, 1, p.tensor.shape).astype(np.float32)
              for p in module.main.params]  # fmt: skip
    with tw.compile(module, target="opencl") as exe:
        np.testing.assert_allclose(exe(*inputs)[0], tw.interpret(module, *inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["input.1", "onnx::Conv_12", "/conv/out-0", "serving_default_x:0", "x/y:1"])
def test_names_of_other_formats(name):
    module = load(f"def @main(%{name}: Tensor[(2, 3), float32]) {{ add(%{name}, %{name}) }}")
    np.testing.assert_array_equal(tw.interpret(module, X)[0], 2 * X)


def test_attributes_that_printers_leave_out():
    """TVM prints no attribute that has its default."""
    boxes = np.random.default_rng(0).uniform(0, 1, (1, 5, 6)).astype(np.float32)
    given = "vision.get_valid_counts(%x0, 0.5f{}).1"
    short, full = (run(given.format(more), boxes)[0] for more in ("", ", id_index=0, score_index=1"))
    np.testing.assert_array_equal(short, full)
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    for body in ("vision.yolo_reorg(%x0)", "nn.depth_to_space(%x0)", "nn.space_to_depth(%x0)"):
        np.testing.assert_array_equal(run(body, x)[0], x)
    np.testing.assert_array_equal(run("nn.space_to_batch_nd(%x0, paddings=[[0, 0], [0, 0]])", x)[0], x)
    (got,) = run("one_hot(%x0, 1f, 0f)", np.array([0, 1], np.int32))
    np.testing.assert_array_equal(got, np.array([[1], [0]], np.float32))
