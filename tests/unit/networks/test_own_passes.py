"""Passes of users in `tw.compile` and on the command line: where they run, what is kept, what is refused."""

import json

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.own_passes import OwnPasses
from tilewright.ir import Func, Level, Module
from tilewright.passes import (
    Instrument,
    PassContext,
    PassError,
    Pipeline,
    pattern,
    register_pass,
    rewrite_func,
    scoped_registry,
)
from tilewright.streaming import compile as compile_streamed
from tilewright.tools.cli import main

NET = """
module @net {
  graph.func @main(%x: f32[4, 6]) -> f32[4, 6] {
    %0 = graph.relu(%x) : f32[4, 6]
    %1 = graph.exp(%0) : f32[4, 6]
    graph.return(%1)
  }
}
"""
FILE = '''
from tilewright.ir import Func, Level
from tilewright.passes import PassContext, pattern, register_pass, rewrite_func


@register_pass(Level.GRAPH)
def exp_to_relu(func: Func, ctx: PassContext, *, times: int = 1) -> Func:
    """Compute something else, so that it shows.

    rewrite: graph.exp(%x)   -->   graph.relu(%x)
    """

    @pattern("graph.exp")
    def found(op, rewriter):
        return [rewriter.value("graph.relu", *op.operands)]

    return rewrite_func(func, [found])


@register_pass(Level.GRAPH)
def none_pass(func: Func, ctx: PassContext) -> Func:
    """Return nothing.

    rewrite: a --> b
    """
'''
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
RELU, EXP_RELU = np.maximum(X, 0), np.exp(np.maximum(X, 0))


@pytest.fixture(autouse=True)
def passes():
    """One pass at each level, and where each of them ran: the ops it saw."""
    seen: dict[str, list[str]] = {"tensor": [], "thread": []}
    with scoped_registry():

        @register_pass(Level.GRAPH)
        def relu_for_exp(func: Func, ctx: PassContext) -> Func:
            """Compute something else, so that it shows.

            rewrite: graph.exp(%x)   -->   graph.relu(%x)
            """

            @pattern("graph.exp")
            def found(op, rewriter):
                return [rewriter.value("graph.relu", *op.operands)]

            return rewrite_func(func, [found])

        @register_pass(Level.TENSOR)
        def see_tensor(func: Func, ctx: PassContext) -> Func:
            """Look.

            rewrite: a --> a
            """
            seen["tensor"] += [op.name for op in func.body.ops]
            return func

        @register_pass(Level.THREAD)
        def see_thread(func: Func, ctx: PassContext) -> Func:
            """Look.

            rewrite: a --> a
            """
            seen["thread"].append(func.name)
            return func

        yield {"graph": relu_for_exp, "tensor": see_tensor, "thread": see_thread, "seen": seen}


class Order(Instrument):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.texts: list[str] = []

    def after(self, step, before: Module, after: Module) -> None:
        self.names.append(step.configured.name)
        self.texts.append(str(step.configured))


@pytest.mark.parametrize("target", ["opencl", "reference"])
def test_a_graph_pass_takes_effect(passes, target):
    m = tw.parse(NET)
    np.testing.assert_allclose(tw.compile(m, target=target)(X)[0], EXP_RELU, rtol=1e-5)
    for given in ((passes["graph"],), [passes["graph"]()], {"graph": "relu-for-exp"}, ("relu-for-exp",)):
        np.testing.assert_array_equal(tw.compile(m, target=target, passes=given)(X)[0], RELU)


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_graph_pass_works_in_every_precision(passes, precision):
    exe = tw.compile(tw.parse(NET), target="null", passes=["relu-for-exp"], precision=precision)
    assert exe.report()["passes"] == {"graph": "relu-for-exp"}


def test_each_level_has_its_point(passes, tmp_path):
    order, names = Order(), ("see-thread", "tensor: see-tensor", passes["graph"])
    exe = tw.compile(tw.parse(NET), target="null", passes=names, instruments=[order], verify_each=True)
    at = order.names.index
    assert at("dce") < at("relu-for-exp") < at("choose-algorithms") < at("graph-to-tensor")
    assert at("fold-constant-tensors") < at("see-tensor") < at("sort-scatters")
    assert at("thread-dce") < at("see-thread") < at("place-barriers")
    assert passes["seen"]["tensor"][:2] == ["tensor.map", "tensor.map"]  # before kernels are cut
    assert passes["seen"]["thread"]
    facts = {"graph": "relu-for-exp", "tensor": "see-tensor", "thread": "see-thread"}
    assert exe.report()["passes"] == facts
    exe.save(tmp_path / "net.tw")
    assert tw.load(tmp_path / "net.tw").report()["passes"] == facts
    assert "passes" not in tw.compile(tw.parse(NET), target="null").report()


def test_a_pass_that_needs_kernels_runs_in_its_place_of_the_pipeline(passes):
    """It cannot run right after lowering; the options given hold there."""
    order, given = Order(), "tensor: join-product-sums{when=always}, see-tensor"
    exe = tw.compile(tw.parse(NET), target="null", passes=[given], instruments=[order])
    at = order.names.index
    assert at("see-tensor") < at("fuse-kernels") < at("join-product-sums") < at("merge-dims")
    assert order.names.count("join-product-sums") == 1
    assert "join-product-sums{when=always}" in order.texts
    assert exe.report()["passes"] == {"tensor": given.removeprefix("tensor: ")}


def test_kernels_of_other_passes_are_other_kernels(passes):
    m = tw.parse(NET)
    sources = [
        tuple(k.source for k in tw.compile(m, target="null", passes=p).plan.kernels)
        for p in ((), (passes["graph"],))
    ]
    assert sources[0] != sources[1]


def test_steps_of_a_streamed_network_have_them_as_well(passes):
    with compile_streamed(tw.parse(NET), "opencl", memory_cap="1MiB", passes=["relu-for-exp"]) as exe:
        np.testing.assert_array_equal(exe.run([[X]])[0][0], RELU)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"loop": "dce"}, "expected a level among graph, tensor, thread, got 'loop'"),
        (("cse",), "pass 'cse' runs on graph and tensor: expected its level as well, as in 'graph: cse'"),
        ({"thread": "relu-for-exp"}, "pass 'relu-for-exp' runs on graph, not on thread"),
        (("graph-to-tensor",), "lowers to tensor: expected one that keeps its level"),
        (("no-such-pass",), "passes:1:1: unknown pass 'no-such-pass'"),
        (("",), "expected a pass, got none"),
        ((5,), "expected a pass or its text, got int"),
        (5, "expected passes or their text, got int"),
    ],
)
def test_what_is_no_pass_of_its_level_is_refused(given, told):
    with pytest.raises(tw.InputError) as caught:
        tw.compile(tw.parse(NET), target="null", passes=given)
    assert told in str(caught.value)


def test_levels_that_are_not_gone_through_are_refused():
    with pytest.raises(tw.InputError, match="expected no passes of the thread level for the reference"):
        tw.compile(tw.parse(NET), target="reference", passes=["see-thread"])
    exe = tw.compile(tw.parse(NET), target="null")
    lowered = tw.parse(exe.artifact.texts["tensor"])
    with pytest.raises(
        tw.InputError, match="expected no passes of the graph level for a module of the tensor"
    ):
        tw.compile(lowered, target="null", passes=["relu-for-exp"])


def test_a_pass_that_breaks_the_module_is_named(tmp_path):
    @register_pass(Level.GRAPH)
    def drop_everything(func: Func, ctx: PassContext) -> Func:
        """Leave nothing.

        rewrite: a --> nothing
        """
        return func.with_body(func.body.with_ops(func.body.ops[-1:]))

    with pytest.raises(
        PassError, match=r"pass 'drop-everything' \(1 of 1\) left a bad module: it broke 'verified'"
    ):
        tw.compile(tw.parse(NET), target="null", passes=[drop_everything])


def test_texts_keep_options_and_colons(passes):
    own = OwnPasses.of({"graph": ["relu-for-exp, dce", Pipeline.parse("cse")], "thread": passes["thread"]})
    assert own.facts() == {"graph": "relu-for-exp, dce, cse", "thread": "see-thread"}
    assert OwnPasses.of(("graph: relu-for-exp, dce", "graph:cse", "see-thread")) == own


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.ir").write_text(NET)
    (tmp_path / "mine.py").write_text(FILE)
    np.savez(tmp_path / "in.npz", x=X)
    return tmp_path


def test_the_command_line_takes_them(folder, capsys):
    own = [
        "--import",
        str(folder / "mine.py"),
        "--pass-pipeline",
        "graph:exp-to-relu{times=2}",
    ]
    net, out = str(folder / "net.ir"), str(folder / "out.npz")
    run = ["run", net, "--target", "opencl", "--input", str(folder / "in.npz"), "--output", out]
    assert main([*run, *own, "--verify-each", "--repeats", "1"]) == 0, capsys.readouterr().err
    np.testing.assert_array_equal(np.load(out)["out0"], RELU)
    assert main([*run, *own, "--check"]) == 1  # the network itself is the reference
    assert "the result is wrong" in capsys.readouterr().err
    compiled = ["compile", net, "--target", "opencl", "-o", str(folder / "net.tw"), "--json"]
    assert main([*compiled, *own]) == 0
    assert json.loads(capsys.readouterr().out)["passes"] == {"graph": "exp-to-relu{times=2}"}
    assert main(["explain", net, "--target", "opencl", *own]) == 0
    assert (
        main(["report", net, "--target", "opencl", "-o", str(folder / "r.html"), "--repeats", "0", *own]) == 0
    )
    assert "own passes graph: exp-to-relu{times=2}" in (folder / "r.html").read_text(encoding="utf-8")


def test_the_command_line_tells_what_is_wrong(folder, capsys):
    mine, net = ["--import", str(folder / "mine.py")], str(folder / "net.ir")
    for arguments, code, told in (
        (
            [*mine, "--pass-pipeline", "graph:none-pass"],
            1,
            "pass 'none-pass' (1 of 1) returned NoneType, expected",
        ),
        ([*mine, "--pass-pipeline", "loop:none-pass"], 2, "--pass-pipeline: expected a level among"),
        (["--pass-pipeline", "graph:not-there"], 2, "--pass-pipeline:1:1: unknown pass 'not-there'"),
        (["--import", "none.py", "--pass-pipeline", "graph:cse"], 2, "cannot import 'none.py'"),
        (mine, 2, "--import: expected --pass-pipeline with this option"),
    ):
        assert main(["compile", net, "--target", "null", *arguments]) == code
        assert told in capsys.readouterr().err
    assert main(["run", "net.tw", "--pass-pipeline", "graph:cse"]) == 2
    assert "expected a network with this option" in capsys.readouterr().err
