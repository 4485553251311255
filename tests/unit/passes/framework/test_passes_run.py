"""Running pipelines: checks, failures and their reproducers, instruments, bisection."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir import (
    Constants,
    Func,
    InputError,
    Level,
    Module,
    UnsupportedError,
    equal,
    interpret,
    parse,
)
from tilewright.passes import (
    DumpFolder,
    PassContext,
    PassError,
    Pipeline,
    PrintAfter,
    PrintDiff,
    Statistics,
    Timing,
    find_pass,
    first_bad_pass,
    prefixes,
    read_reproducer,
    register_invariant,
    register_pass,
    run_pipeline,
    scoped_registry,
)

TEXT = """
module @net {
  graph.func @main(%x: f32[3]) -> f32[3] {
    %w = graph.constant(name = "w") : f32[3]
    %0 = graph.relu(%x) : f32[3] loc "relay:relu#1"
    %1 = graph.relu(%x) : f32[3] loc "relay:relu#2"
    %2 = graph.add(%0, %1) : f32[3]
    %3 = graph.multiply(%2, %w) : f32[3]
    graph.return(%3)
  }
}
"""


@register_invariant("has-main-for-test")
def has_main(module: Module) -> list[str]:
    return [] if any(f.name == "main" for f in module.funcs) else ["there is no @main"]


@pytest.fixture(autouse=True)
def _sample_passes():
    with scoped_registry():

        @register_pass(Level.GRAPH)
        def crash(func: Func, ctx: PassContext, *, on: str = "graph.relu") -> Func:
            """rewrite: op --> failure"""
            for op in func.body.ops:
                if op.name == on:
                    raise KeyError("no such key")
            return func

        @register_pass(Level.GRAPH)
        def refuse(func: Func, ctx: PassContext) -> Func:
            """rewrite: op --> refusal"""
            op = func.body.ops[1]
            raise UnsupportedError(f"{op.name} is not supported")

        @register_pass(Level.GRAPH)
        def break_types(func: Func, ctx: PassContext) -> Func:
            """rewrite: op --> op without operands"""
            broken = replace(func.body.ops[1], operands=())
            return func.with_body(func.body.with_ops((func.body.ops[0], broken, *func.body.ops[2:])))

        @register_pass(Level.GRAPH)
        def relu_to_abs(func: Func, ctx: PassContext) -> Func:
            """rewrite: relu --> abs (which is wrong)"""
            ops = tuple(replace(o, name="graph.abs") if o.name == "graph.relu" else o for o in func.body.ops)
            return func.with_body(func.body.with_ops(ops))

        @register_pass(Level.GRAPH, establishes={"has-main-for-test"})
        def rename_main(module: Module, ctx: PassContext) -> Module:
            """rewrite: @main --> @other"""
            return module.with_funcs(tuple(replace(f, name="other") for f in module.funcs))

        @register_pass(Level.GRAPH, requires={"kernels-outlined"})
        def wants_kernels(func: Func, ctx: PassContext) -> Func:
            """rewrite: a --> a"""
            return func

        @register_pass(Level.GRAPH)
        def clean(module: Module, ctx: PassContext) -> Module:
            """rewrite: a --> a, by other passes"""
            return run_pipeline(module, Pipeline.parse("cse, dce"), ctx)

        yield


@pytest.fixture
def module() -> Module:
    return parse(TEXT, constants=Constants({"w": np.arange(1, 4, dtype=np.float32)}))


@pytest.fixture
def ctx(tmp_path) -> PassContext:
    return PassContext(reproducer_folder=tmp_path / "reproducers", verify_each=True)


def run(text: str, module: Module, ctx: PassContext, *instruments) -> Module:
    return run_pipeline(module, Pipeline.parse(text), replace(ctx, instruments=instruments))


def test_unchanged_is_identity(module, ctx):
    assert run("dce, infer-shapes, dce", module, ctx) is module
    once = run("cse, dce", module, ctx)
    assert once is not module
    assert run("cse, dce", once, ctx) is once
    assert find_pass("cse")()(once) is once


def test_a_failing_pass_is_named_with_its_place_and_op_and_can_be_rerun(module, ctx):
    with pytest.raises(PassError) as e:
        run("cse, crash{on=graph.add}, dce", module, ctx)
    text, _, rerun = str(e.value).partition("\n")
    assert text.startswith("pass 'crash' (2 of 3) failed at graph.add: KeyError: 'no such key' (")
    path = next(ctx.reproducer_folder.glob("*.ir"))
    assert rerun == f"rerun it with: irdump {path} --import {__file__}"
    again, pipeline, _ = read_reproducer(path)
    assert str(pipeline) == "crash{on=graph.add}, dce"
    assert equal(again, run("cse", module, ctx))
    with pytest.raises(PassError, match=r"pass 'crash' \(1 of 2\) failed at graph.add"):
        run_pipeline(again, pipeline, PassContext(reproducer_folder=None))
    assert sorted(p.suffix for p in ctx.reproducer_folder.iterdir()) == [".ir", ".safetensors"]


def test_the_location_of_the_op_is_in_the_message(module, ctx):
    with pytest.raises(PassError, match=r"failed at graph.relu \[relay:relu#1\]: KeyError"):
        run("crash", module, ctx)


def test_a_refusal_stays_an_input_error_and_needs_no_reproducer(module, ctx):
    with pytest.raises(
        UnsupportedError, match=r"pass 'refuse' \(1 of 1\) failed at graph.relu .*not supported"
    ):
        run("refuse", module, ctx)
    assert not ctx.reproducer_folder.exists()


def test_no_folder_no_reproducer(module, ctx):
    with pytest.raises(PassError) as e:
        run("crash", module, replace(ctx, reproducer_folder=None))
    assert "irdump" not in str(e.value)


def test_a_pass_that_leaves_a_bad_module_is_found_only_when_asked(module, ctx):
    with pytest.raises(PassError, match=r"'break-types' \(1 of 1\) left a bad module: it broke 'verified'"):
        run("break-types", module, ctx)
    assert run("break-types", module, replace(ctx, verify_each=False)) is not module


def test_a_pass_that_does_not_establish_what_it_says_is_found(module, ctx):
    with pytest.raises(PassError, match="did not establish 'has-main-for-test': there is no @main"):
        run("rename-main", module, ctx)


def test_what_a_pass_requires_is_looked_at(module, ctx):
    with pytest.raises(
        InputError, match=r"'wants-kernels' .* requires 'kernels-outlined', but @main holds graph"
    ):
        run("wants-kernels", module, replace(ctx, verify_each=False))


def test_levels_of_the_module_decide(module, ctx):
    with pytest.raises(InputError, match="pass 1 of 1, 'forward-copies': expected functions of level tensor"):
        run("forward-copies", module, ctx)


def test_timing_is_a_tree(module, ctx):
    timing = Timing()
    run("clean, infer-shapes", module, ctx, timing)
    assert [(r.name, [c.name for c in r.children]) for r in timing.roots] == [
        ("clean", ["cse", "dce"]),
        ("infer-shapes", []),
    ]
    assert timing.roots[0].seconds >= sum(c.seconds for c in timing.roots[0].children)
    lines = timing.report().splitlines()
    assert [line.split("%")[-1] for line in lines[1:]] == [
        "  clean",
        "    cse",
        "    dce",
        "  infer-shapes",
        "  total",
    ]


def test_print_after_takes_patterns_and_prints_changes_only(module, ctx):
    out: list[str] = []
    run("cse, infer-shapes, dce, fold-constants", module, ctx, PrintAfter("?s*", "fold-*", write=out.append))
    assert [text.splitlines()[0] for text in out] == [
        "# after cse (1 of 4)",
        "# after fold-constants (4 of 4): unchanged",
    ]
    assert out[0].count("graph.relu") == 1


def test_the_diff_shows_what_changed(module, ctx):
    out: list[str] = []
    run("dce, cse", module, ctx, PrintDiff(write=out.append))
    (text,) = out
    changed = [line for line in text.splitlines() if line[0] in "+-" and not line.startswith(("---", "+++"))]
    assert changed[0] == "-    %1 = graph.relu(%x) : f32[3]"


def test_dumps_are_numbered_and_written_on_change(module, ctx, tmp_path):
    dump = DumpFolder(tmp_path / "dump")
    result = run("dce, cse, infer-shapes", module, ctx, dump)
    assert [p.name for p in dump.files] == ["000-input.ir", "002-cse.ir"]
    assert equal(parse(dump.files[-1].read_text()), result, constants=False)


def test_statistics_count_ops(module, ctx):
    statistics = Statistics()
    run("cse, dce", module, ctx, statistics)
    assert statistics.report().splitlines() == [
        "cse (1 of 2): 6 -> 5 ops (graph.relu 2 -> 1)",
        "dce (2 of 2): 5 -> 5 ops",
    ]


def test_instruments_see_failures(module, ctx):
    timing = Timing()
    with pytest.raises(PassError):
        run("crash", module, ctx, timing)
    run("dce", module, ctx, timing)
    assert [r.name for r in timing.roots] == ["crash", "dce"]


@pytest.mark.parametrize("before", [0, 1, 2, 5])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_bisection_finds_the_pass_that_changes_results(module, ctx, before, after):
    x = np.array([-1, 0.5, 2], np.float32)
    expected = interpret(module, x)[0]
    asked: list[Module] = []

    def is_good(m: Module) -> bool:
        asked.append(m)
        return bool(np.array_equal(interpret(m, x)[0], expected))

    pipeline = Pipeline.parse(", ".join(["cse"] * before + ["relu-to-abs"] + ["dce"] * after))
    step = first_bad_pass(module, pipeline, is_good, ctx)
    assert step is not None
    assert (step.configured.name, step.position, step.total) == (
        "relu-to-abs",
        before + 1,
        before + 1 + after,
    )
    assert len(asked) <= 2 + len(pipeline).bit_length()
    assert first_bad_pass(module, Pipeline.parse("cse, dce"), is_good, ctx) is None


def test_bisection_refuses_a_module_that_is_wrong_from_the_start(module):
    with pytest.raises(InputError, match="wrong before any pass"):
        first_bad_pass(module, Pipeline.parse("dce"), lambda m: False)


def test_prefixes_skip_passes_run_by_passes(module):
    modules = prefixes(module, Pipeline.parse("clean, dce"))
    assert len(modules) == 3
    assert modules[1] is modules[2] is not modules[0]


def test_a_pass_that_returns_no_ir_is_told_so(tmp_path):
    @register_pass(Level.GRAPH)
    def none_pass(func: Func, ctx: PassContext) -> Func:
        """Forget to return.

        rewrite: a --> b
        """

    @register_pass(Level.GRAPH)
    def text_pass(module: Module, ctx: PassContext) -> Module:
        """Return something else.

        rewrite: a --> b
        """
        return str(module)  # type: ignore[return-value]

    m, ctx = parse(TEXT), PassContext(reproducer_folder=tmp_path)
    with pytest.raises(PassError, match=r"^pass 'none-pass' \(1 of 1\) returned NoneType, expected a Func;"):
        none_pass()(m, ctx)
    for name, told in (("none-pass", "NoneType, expected a Func"), ("text-pass", "str, expected a Module")):
        with pytest.raises(PassError, match=f"pass '{name}' \\(2 of 2\\) returned {told}"):
            run_pipeline(m, Pipeline.parse(f"cse, {name}"), ctx)


def test_a_failure_names_the_line_of_the_pass(tmp_path):
    @register_pass(Level.GRAPH)
    def raising_pass(func: Func, ctx: PassContext) -> Func:
        """Raise.

        rewrite: a --> b
        """
        return func.body.ops[99]

    ctx = PassContext(reproducer_folder=tmp_path)
    with pytest.raises(
        PassError, match=r"IndexError: tuple index .* \(.*test_passes_run\.py:\d+\)"
    ) as caught:
        raising_pass()(parse(TEXT), ctx)
    assert f"--import {__file__}" in str(caught.value)
    assert isinstance(caught.value.__cause__, IndexError)
