"""with_input_shapes: the same network for other shapes of its inputs."""

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Constants, InputError, Module, UnsupportedError, equal, parse, verify
from tilewright.passes import PassContext, Pipeline, run_pipeline

RELAY = Path(__file__).parents[2] / "data" / "relay"


def module(body: str, **inputs: str) -> Module:
    """A module of these inputs; `%y` is its result, whose type is inferred."""
    arguments = ", ".join(f"%{name}: {t}" for name, t in inputs.items())
    text = f"module @m {{ graph.func @main({arguments}) -> f32[1] {{ {body} graph.return(%y) }} }}"
    constants = {
        n: np.linspace(0, 1, 12, dtype=np.float32).reshape(s) for n, s in (("row", (1, 12)), ("rows", (4, 3)))
    }
    untyped = parse(text, constants=Constants(constants))
    return run_pipeline(untyped, Pipeline.parse("infer-shapes"), PassContext(reproducer_folder=None))


def op(name: str, operands: str, result: str = "f32[1]", **attrs: object) -> str:
    """Text of `%y = name(operands, attrs)`; the type is put right by inference."""
    written = "".join(f", {k} = {list(v) if isinstance(v, tuple) else v}" for k, v in attrs.items())
    return f"%y = graph.{name}({operands}{written}) : {result}"


def follow(m: Module, **shapes: tuple[int, ...]) -> Module:
    after = tw.with_input_shapes(m, shapes)
    verify(after)
    return after


def shape_of(m: Module) -> tuple[int, ...]:
    return m.main.result_types[0].shape


def reshaped(old: tuple[int, ...], to: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    return shape_of(follow(module(op("reshape", "%x", newshape=to), x=f"f32{list(old)}"), x=new))


@pytest.mark.parametrize(
    ("old", "to", "new", "expected"),
    [
        ((1, 3, 4, 5), (1, 60), (8, 3, 4, 5), (8, 60)),
        ((1, 3, 4, 5), (1, 60), (1, 3, 8, 10), (1, 240)),
        ((1, 3, 4, 5), (1, 3, 20), (2, 3, 6, 7), (2, 3, 42)),
        ((1, 8, 12), (1, 8, 3, 4), (5, 8, 12), (5, 8, 3, 4)),
        ((1, 8, 12), (8, 12), (5, 8, 12), (40, 12)),
        ((1, 8, 12), (1, 1, 8, 12), (5, 8, 12), (5, 1, 8, 12)),
        ((1, 1, 12), (1, 1, 3, 4), (2, 5, 12), (2, 5, 3, 4)),
        ((1, 1, 12), (1, 1, 3, 4), (1, 5, 12), (1, 5, 3, 4)),
        ((1, 7), (1, 7, 1, 1), (3, 7), (3, 7, 1, 1)),
        ((1, 7, 1, 1), (1, 7), (3, 7, 1, 1), (3, 7)),
        ((64, 7, 2), (64, 14), (1, 7, 2), (1, 14)),
        ((96, 7), (8, 12, 7), (192, 7), (16, 12, 7)),
        ((96, 7), (8, 12, 7), (12, 7), (1, 12, 7)),
        ((8, 1, 6), (8, 6), (16, 1, 6), (16, 6)),
        ((2, 6, 4), (2, 4, 6), (5, 6, 4), (5, 4, 6)),
    ],
)
def test_reshape_follows(old, to, new, expected):
    assert reshaped(old, to, new) == expected


@pytest.mark.parametrize(
    ("old", "to", "new"),
    [
        ((1, 49, 3), (1, 7, 7, 3), (1, 196, 3)),  # 14 x 14, 28 x 7?
        ((5, 1, 12), (5, 12), (5, 3, 12)),  # 15 x 12, 5 x 36?
        ((9, 7), (3, 3, 7), (4, 7)),  # 4 does not divide as 9 did
        ((4, 6), (8, 3), (4, 12)),
        ((0, 6), (0, 2, 3), (4, 6)),
    ],
)
def test_a_reshape_with_several_answers_is_refused(old, to, new):
    m = module(op("reshape", "%x", newshape=to), x=f"f32{list(old)}")
    with pytest.raises(UnsupportedError, match=r"graph.reshape.*cannot follow.*-> \["):
        tw.with_input_shapes(m, {"x": new})


def test_a_merged_batch_is_cut_out_again_exactly():
    """The heads of attention: batch * heads in one dimension, with 1 and with 2 in the batch before."""
    for old, new in ((1, 6), (2, 8), (4, 1)):
        body = f"""
        %a = graph.reshape(%x, newshape = [{old}, 5, 3, 4]) : f32[1]
        %b = graph.transpose(%a, axes = [0, 2, 1, 3]) : f32[1]
        %c = graph.reshape(%b, newshape = [{old * 3}, 5, 4]) : f32[1]
        %d = graph.batch_matmul(%c, %c, transpose_b = true) : f32[1]
        %e = graph.softmax(%d) : f32[1]
        %f = graph.batch_matmul(%e, %c) : f32[1]
        %g = graph.reshape(%f, newshape = [{old}, 3, 5, 4]) : f32[1]
        %h = graph.transpose(%g, axes = [0, 2, 1, 3]) : f32[1]
        %y = graph.reshape(%h, newshape = [{old}, 5, 12]) : f32[1]
        """
        m = module(body, x=f"f32[{old}, 5, 12]")
        after = follow(m, x=(new, 5, 12))
        assert shape_of(after) == (new, 5, 12)
        assert [o.result.tensor.shape for o in after.main.body.ops if o.name == "graph.softmax"] == [
            (new * 3, 5, 5)
        ]
        assert_samples_agree(m, after)


def test_height_and_width_merged_are_cut_apart_again():
    body = """
    %a = graph.reshape(%x, newshape = [1, 3, 35]) : f32[1]
    %b = graph.relu(%a) : f32[1]
    %y = graph.reshape(%b, newshape = [1, 3, 5, 7]) : f32[1]
    """
    assert shape_of(follow(module(body, x="f32[1, 3, 5, 7]"), x=(2, 3, 6, 9))) == (2, 3, 6, 9)


@pytest.mark.parametrize(
    ("between", "to", "expected"),
    [
        ("transpose(%a, axes = [1, 0])", (3, 1, 3), (6, 2, 3)),
        ("broadcast_to(%a, shape = [4, 3, 3])", (4, 1, 3, 3), (4, 2, 3, 6)),
    ],
)
def test_factors_go_where_their_dimension_goes(between, to, expected):
    """Two dimensions go from 3 to 6; only the first, which stands for a batch of 3 each, can be cut."""
    body = f"""
    %a = graph.reshape(%x, newshape = [3, 3]) : f32[1]
    %b = graph.{between} : f32[1]
    {op("reshape", "%b", newshape=to)}
    """
    assert shape_of(follow(module(body, x="f32[1, 3, 3]"), x=(2, 3, 6))) == expected


def assert_samples_agree(small: Module, large: Module) -> None:
    """Every sample of the larger (or smaller) batch gives what it gives in a batch of the other module."""
    rng = np.random.default_rng(3)
    (few, many) = sorted((small, large), key=lambda m: m.input_types[0].shape[0])
    count, step = many.input_types[0].shape[0], few.input_types[0].shape[0]
    inputs = [
        rng.integers(0, 100, t.shape).astype(t.dtype)
        if "int" in t.dtype
        else rng.standard_normal(t.shape).astype(t.dtype)
        for t in many.input_types
    ]
    parts = [
        tw.interpret(few, *[a[i : i + step] if len(a) == count else a for a in inputs])
        for i in range(0, count, step)
    ]
    for j, whole in enumerate(tw.interpret(many, *inputs)):
        np.testing.assert_allclose(np.concatenate([p[j] for p in parts]), whole, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (op("broadcast_to", "%x", shape=(4, 1, 3)), (1, 3), (1, 5), (4, 1, 5)),
        (op("broadcast_to", "%x", shape=(1, 6, 3)), (1, 1, 3), (7, 1, 3), (7, 6, 3)),
        (op("strided_slice", "%x", begin=(0, 2), size=(1, 3), strides=(1, 1)), (1, 9), (4, 9), (4, 3)),
        (op("strided_slice", "%x", begin=(0, 1), size=(1, 3), strides=(1, 1)), (1, 9), (1, 12), (1, 3)),
        (op("strided_slice", "%x", begin=(0, 1), size=(2, 4), strides=(1, 2)), (2, 8), (2, 13), (2, 6)),
        (op("strided_slice", "%x", begin=(0, 8), size=(2, 9), strides=(1, -1)), (2, 9), (2, 5), (2, 5)),
        (op("resize2d", "%x", size=(8, 6)), (1, 2, 4, 3), (1, 2, 5, 7), (1, 2, 10, 14)),
        (op("resize2d", "%x", size=(2, 9)), (1, 2, 4, 3), (3, 2, 6, 3), (3, 2, 3, 9)),
        (op("tile", "%x", reps=(1, 2)), (1, 3), (4, 3), (4, 6)),
        (op("repeat", "%x", repeats=3, axis=0), (1, 3), (4, 3), (12, 3)),
        (op("pad", "%x", pad_before=(0, 1), pad_after=(0, 1)), (1, 3), (4, 5), (4, 7)),
        (op("batch_flatten", "%x"), (1, 3, 4), (4, 3, 5), (4, 15)),
        (op("squeeze", "%x", axis=(2,)), (1, 3, 1), (4, 3, 1), (4, 3)),
        (op("expand_dims", "%x", axis=1), (1, 3), (4, 3), (4, 1, 3)),
        (op("adaptive_avg_pool2d", "%x", output_size=(2, 2)), (1, 2, 4, 4), (3, 2, 8, 6), (3, 2, 2, 2)),
    ],
)
def test_attributes_follow_their_operands(text, old, new, expected):
    assert shape_of(follow(module(text, x=f"f32{list(old)}"), x=new)) == expected


def test_a_reversed_slice_still_reverses():
    m = module(op("strided_slice", "%x", begin=(8,), size=(9,), strides=(-1,)), x="f32[9]")
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(tw.interpret(follow(m, x=(5,)), x)[0], x[::-1])


def test_equal_sections_stay_equal():
    m = module("%y, %z = graph.split(%x, indices = [3], axis = 1) : f32[1], f32[1]", x="f32[1, 6]")
    assert shape_of(follow(m, x=(2, 10))) == (2, 5)
    with pytest.raises(UnsupportedError, match="may be others"):
        tw.with_input_shapes(m, {"x": (1, 7)})
    steps = module("%y, %z = graph.split(%x, indices = [1], axis = 1) : f32[1], f32[1]", x="f32[1, 2]")
    with pytest.raises(UnsupportedError, match="may be others"):
        tw.with_input_shapes(steps, {"x": (1, 4)})


def test_a_sort_of_everything_stays_one():
    both = "%y, %z = graph.topk(%x, k = {}) : f32[1], i32[1]"
    assert shape_of(follow(module(both.format(6), x="f32[1, 6]"), x=(1, 9))) == (1, 9)
    assert shape_of(follow(module(both.format(2), x="f32[1, 6]"), x=(4, 9))) == (4, 2)


def test_what_is_put_into_a_full_dimension_follows():
    m = module(op("strided_set", "%x, %v", begin=(0, 2), strides=(1, 1)), x="f32[1, 9]", v="f32[1, 3]")
    assert shape_of(follow(m, x=(4, 9), v=(4, 3))) == (4, 9)
    with pytest.raises(UnsupportedError, match="what is put there"):
        tw.with_input_shapes(m, {"x": (4, 9)})


@pytest.mark.parametrize("axis", [0, 1])
def test_a_constant_joined_with_a_batch_is_repeated(axis):
    """As the class token of a vision transformer and the first state of an LSTM."""
    body = f"""
    %c = graph.constant(name = "row") : f32[1, 12]
    %e = graph.broadcast_to(%c, shape = [1, 12]) : f32[1, 12]
    %y = graph.{"concatenate(%x, %e, axis = 1)" if axis else "stack(%x, %e, axis = 0)"} : f32[1]
    """
    m = module(body, x="f32[1, 12]")
    large = follow(m, x=(5, 12))
    if axis:
        assert_samples_agree(m, large)
    else:
        assert shape_of(large) == (2, 5, 12)
    assert equal(follow(follow(large, x=(3, 12)), x=(5, 12)), large)


@pytest.mark.parametrize(
    ("body", "inputs", "new", "message"),
    [
        (
            op("strided_slice", "%x", begin=(1,), size=(8,), strides=(1,)),
            {"x": "f32[9]"},
            (12,),
            "grow or move",
        ),
        (
            op("strided_slice", "%x", begin=(8,), size=(1,), strides=(1,)),
            {"x": "f32[9]"},
            (12,),
            "grow or move",
        ),
        (op("broadcast_to", "%x", shape=(4, 3)), {"x": "f32[1, 3]"}, (2, 3), "repeats one element 4 times"),
        (op("resize1d", "%x", size=(3,)), {"x": "f32[1, 1, 4]"}, (1, 1, 5), "no whole size"),
        (op("squeeze", "%x"), {"x": "f32[1, 3]"}, (2, 3), "another rank"),
        (
            '%c = graph.constant(name = "rows") : f32[4, 3]\n' + op("add", "%x, %c"),
            {"x": "f32[4, 3]"},
            (1, 3),
            "keep their common extent 4",
        ),
        (
            '%c = graph.constant(name = "rows") : f32[4, 3]\n' + op("add", "%x, %c"),
            {"x": "f32[1, 3]"},
            (4, 3),
            "was repeated 4 times",
        ),
        (
            """%c = graph.constant(name = "rows") : f32[4, 3]
            %d = graph.expand_dims(%c, axis = 2) : f32[1]"""
            + op("batch_matmul", "%x, %d"),
            {"x": "f32[4, 5, 3]"},
            (1, 5, 3),
            "keep their common extent 4",
        ),
        (
            """%a = graph.batch_flatten(%x) : f32[1]
            %c = graph.constant(name = "row") : f32[1, 12]
            """
            + op("dense", "%a, %c"),
            {"x": "f32[1, 3, 4]"},
            (1, 3, 5),
            r"graph.dense.*f32\[1, 12\] -> \[1, 15\]",
        ),
    ],
)
def test_what_cannot_follow_is_one_clear_error(body, inputs, new, message):
    with pytest.raises(InputError, match=message) as caught:
        tw.with_input_shapes(module(body, **inputs), {"x": new})
    assert "cannot follow the new input shapes; operands (" in str(caught.value)


def test_indices_into_an_extent_that_changes():
    one = module(op("take", "%x, %i", axis=0), x="f32[1, 3]", i="i32[]")
    with pytest.raises(UnsupportedError, match="as many indices"):
        tw.with_input_shapes(one, {"x": (2, 3)})
    first = module(op("take", "%x, %i", axis=1), x="f32[1, 9]", i="i32[]")
    assert shape_of(follow(first, x=(2, 12))) == (2,)
    rows = module(op("gather", "%x, %i", axis=1), x="f32[1, 9]", i="i64[1, 4]")
    assert shape_of(follow(rows, x=(2, 9), i=(2, 4))) == (2, 4)
    with pytest.raises(UnsupportedError, match="common extent 1 in dimension 0"):
        tw.with_input_shapes(rows, {"x": (2, 9)})
    points = module(op("adv_index", "%x, %i"), x="f32[1, 9]", i="i64[1]")
    with pytest.raises(UnsupportedError, match="keep their shape"):
        tw.with_input_shapes(points, {"x": (2, 9)})


def test_bad_shapes_are_refused():
    m = module(op("relu", "%x"), x="f32[1, 3]")
    for shapes, message in [
        ({"z": (1, 3)}, "unknown input 'z'.*the inputs are x"),
        ({"x": (1, 3, 1)}, "expected 2 dimensions of input 'x'"),
        ({"x": (0, 3)}, "positive integers"),
        ({"x": (True, 3)}, "positive integers"),
        ({"x": (1.0, 3)}, "positive integers"),
    ]:
        with pytest.raises(InputError, match=message):
            tw.with_input_shapes(m, shapes)
    lowered = parse("module @m { tensor.func @main(%x: f32[2]) -> f32[2] { tensor.return(%x) } }")
    with pytest.raises(InputError, match="graph-level"):
        tw.with_input_shapes(lowered, {"x": (3,)})


def test_the_same_shapes_give_the_same_module():
    m = module(op("relu", "%x"), x="f32[1, 3]")
    assert tw.with_input_shapes(m, {"x": (1, 3)}) is m
    assert tw.with_input_shapes(m, {}) is m


def test_it_is_a_pass_too():
    m = module(op("add", "%x, %b"), x="f32[1, 3]", b="f32[3]")
    ctx = PassContext(verify_each=True, reproducer_folder=None)
    after = run_pipeline(m, Pipeline.parse('set-input-shapes{shapes="x=4,6; b=6"}'), ctx)
    assert equal(after, follow(m, x=(4, 6), b=(6,)))
    with pytest.raises(InputError, match="NAME=N,N"):
        run_pipeline(m, Pipeline.parse('set-input-shapes{shapes="x=4,y"}'), ctx)


def load(name: str) -> Module:
    return tw.frontends.relay.load(str(RELAY / f"{name}.relay"), params="random")


def batched(m: Module, factor: int) -> Module:
    given = {n: t.shape for n, t in zip(m.input_names, m.input_types, strict=True) if "::" not in n}
    return follow(m, **{n: (factor * s[0], *s[1:]) for n, s in given.items()})


@pytest.mark.parametrize("name", ["mlp", "dqn", "lstm", "dcgan", "resnet20_cifar", "pt_dlrm", "pt_bigru"])
def test_a_network_at_batch_2_computes_each_sample(name):
    m = load(name)
    assert_samples_agree(m, batched(m, 2))


@pytest.mark.parametrize(
    "name",
    [
        *("bert_base", "densenet121", "inception_v3", "mobilenet", "pt_efficientnet_b0", "pt_googlenet"),
        *("pt_mobilenet_v2", "resnet18", "resnet50", "squeezenet", "vgg16"),
    ],
)
def test_a_large_network_follows_its_batch_and_back(name):
    path = RELAY / f"{name}.relay"
    m = tw.frontends.relay.load(str(path))
    inputs = tuple(n for n in m.input_names if n in ("data", "x", "ids"))
    names = dict(zip(m.input_names, m.input_types, strict=True))
    old = {n: names[n].shape for n in inputs}
    after = follow(m, **{n: (3, *s[1:]) for n, s in old.items()})
    assert shape_of(after) == (3, *shape_of(m)[1:])
    assert equal(follow(after, **old), m)


@pytest.mark.parametrize("name", ["squeezenet", "mobilenet", "resnet18", "pt_mobilenet_v2"])
def test_a_network_with_global_pooling_takes_other_images(name):
    m = tw.frontends.relay.load(str(RELAY / f"{name}.relay"))
    data = "x" if name.startswith("pt") else "data"
    after = follow(m, **{data: (2, 3, 256, 192)})
    assert shape_of(after) == (2, 1000)


def test_a_pooling_window_that_fits_one_size_only_is_named():
    m = tw.frontends.relay.load(str(RELAY / "densenet121.relay"))
    with pytest.raises(InputError, match=r"graph.avg_pool2d \[relay.*512, 7, 7\] -> \[1, 512, 8, 6\]"):
        tw.with_input_shapes(m, {"data": (1, 3, 256, 192)})
