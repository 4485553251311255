"""Public functions called with the wrong things: one clear sentence that says what was expected."""

import numpy as np
import pytest

import tilewright as tw

NETWORK = """module @net { graph.func @main(%x: f32[2, 3], %y: f32[2, 3]) -> f32[2, 3] {
  %0 = graph.subtract(%x, %y) : f32[2, 3] graph.return(%0) } }"""


@pytest.fixture
def module():
    return tw.parse(NETWORK)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda m: tw.load(5), "expected the path of a file, got int"),
        (lambda m: tw.load("a\0b"), "expected the path of a file, got one with a NUL character"),
        (lambda m: tw.parse(5), "expected IR as text, got int"),
        (lambda m: tw.parse(b"module"), "expected IR as text, got bytes"),
        (lambda m: tw.verify(None), "expected a Module, got NoneType"),
        (lambda m: tw.show("m"), "expected a Module or an Executable, got str"),
        (lambda m: tw.interpret(5), "expected a Module, got int"),
        (lambda m: tw.ir.parse_file(5), "expected the path of a file, got int"),
        (lambda m: tw.compile("net.relay"), "expected a Module, got str"),
        (lambda m: tw.compile(m, target=3), "expected a target as text"),
        (lambda m: tw.compile(m, "null", instruments=[5]), "expected instruments that are objects of"),
        (lambda m: tw.compile(m, "null", instruments=5), "expected instruments as a list, got int"),
        (
            lambda m: tw.compile(m, "null", libraries="yes"),
            "expected libraries to be true or false, got 'yes'",
        ),
        (lambda m: tw.compile(m, "null", streams=5), "expected streams among"),
        (lambda m: tw.compile(m.main.body, "null"), "expected a Module, got Block"),
        (lambda m: tw.compile(tw.parse(NETWORK), "null", shapes=[5]), "expected shapes by input name"),
        (
            lambda m: tw.compile(m, "null", tune="measure", tuning_db=5),
            "expected the path of a file, got int",
        ),
        (lambda m: tw.with_input_shapes(m, {"x": 5}), "expected the extents of input 'x', got int"),
        (lambda m: tw.with_input_shapes(m, 5), "expected shapes by input name, got int"),
        (lambda m: tw.with_input_shapes(5, {}), "expected a Module, got int"),
        (lambda m: tw.frontends.relay.load("a\0b"), "got one with a NUL character"),
        (lambda m: tw.frontends.relay.load(None), "expected the path of a file, got NoneType"),
        (lambda m: tw.frontends.onnx.load("a\0b"), "got one with a NUL character"),
        (lambda m: tw.frontends.torch.load(5), "expected the path of a file, got int"),
        (lambda m: tw.frontends.zoo.build(5), "expected the name of a network, got int"),
        (lambda m: tw.frontends.zoo.build("nasnet_mobile{cells=1000000}"), "expected cells of 1 to 64, got"),
        (lambda m: tw.frontends.zoo.build("gpt_tiny{layers=10000000}"), "expected layers of 1 to 1024, got"),
        (lambda m: tw.frontends.zoo.build("gpt_tiny{width=-1}"), "gpt_tiny: expected width of 1 to"),
    ],
)
def test_the_wrong_thing_is_named(module, call, told):
    with pytest.raises(tw.InputError, match=f"(?s).*{told}"):
        call(module)


@pytest.mark.parametrize("options", [{"streams": "exact"}, {"tune": "measure"}, {"conv_algorithm": "fft"}])
def test_the_interpreter_refuses_options_of_kernels(module, options):
    with pytest.raises(tw.InputError, match="expected a target with kernels with"):
        tw.compile(module, "reference", **options)


@pytest.mark.parametrize("use", ["save", "time", "time_kernels", "profile", "load", "plan"])
def test_the_interpreter_says_what_it_has_not(module, use):
    exe = tw.compile(module, "reference")
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(tw.UnsupportedError, match="the reference target interprets: it has no"):
        {"save": lambda: exe.save("x.tw"), "load": exe.load, "plan": lambda: exe.plan}.get(
            use, lambda: getattr(exe, use)(x, x)
        )()


@pytest.mark.parametrize("target", ["reference", "opencl"])
def test_inputs_may_be_named(module, target):
    x, y = np.float32(np.arange(12).reshape(2, 2, 3))
    with tw.compile(module, target) as exe:
        for (got,) in (exe(x, y), exe(y=y, x=x), exe(x, y=y), *exe.map([(x, y)])):
            np.testing.assert_array_equal(got, x - y)
        for inputs, named, told in (
            ((), {"x": x, "z": y}, "unknown input 'z'; the inputs are x, y"),
            ((x,), {"x": x}, "input 'x' is given twice"),
            ((), {"x": x}, "no value is given for input 'y'"),
        ):
            with pytest.raises(tw.InputError, match=told):
                exe(*inputs, **named)


def test_printing_shows_text_and_naming_is_short(module):
    assert str(module) == tw.show(module)
    assert str(module.main).strip() in tw.show(module)
    assert repr(module) == "<Module @net: @main, 2 ops, 0 constants>"
    assert repr(module.main) == "<Func @main of level graph: 2 ops>"
