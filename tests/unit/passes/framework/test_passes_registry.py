"""Registering passes, their options, and pipelines as text."""

import dataclasses
import importlib
from importlib.metadata import EntryPoint
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir import Func, InputError, Level
from tilewright.passes import (
    PassContext,
    PassDef,
    Pipeline,
    find_pass,
    pass_defs,
    register_pass,
    scoped_registry,
)
from tilewright.passes.framework import registry


@pytest.fixture(autouse=True)
def _forget_passes():
    with scoped_registry():
        yield


def define(name="sample", levels=(Level.GRAPH,), **facts):
    def fn(func: Func, ctx: PassContext) -> Func:
        """Sample.

        rewrite: a --> b
        """
        return func

    fn.__name__ = name
    return register_pass(*levels, **facts)(fn)


def tile_loops_definition():
    @register_pass(Level.TENSOR, requires={"verified"})
    def tile_loops(
        func: Func,
        ctx: PassContext,
        *,
        size: int = 4,
        ratio: float = 0.5,
        deep: bool = False,
        order: Literal["row", "column"] = "row",
        label: str = "none given",
    ) -> Func:
        """Tile loops.

        rewrite: loop(n)
            --> loop(n / size) of loop(size)

        More.
        """
        return func

    return tile_loops


def test_a_definition_is_a_frozen_record_with_what_was_declared():
    d = tile_loops_definition()
    assert isinstance(d, PassDef)
    assert (d.name, d.levels, d.scope, d.requires) == (
        "tile-loops",
        (Level.TENSOR,),
        "function",
        {"verified"},
    )
    assert d.summary == "Tile loops."
    assert d.rewrite == "loop(n) --> loop(n / size) of loop(size)"
    assert find_pass("tile-loops") is d
    with pytest.raises(dataclasses.FrozenInstanceError):
        d.name = "other"


def test_a_pass_prints_only_what_differs_from_the_defaults():
    d = tile_loops_definition()
    assert str(d()) == "tile-loops"
    assert str(d(size=4, ratio=0.5)) == "tile-loops"
    assert (
        str(d(order="column", ratio=2, size=8, deep=True))
        == "tile-loops{size=8, ratio=2.0, deep=true, order=column}"
    )
    assert d(size=8) == d(size=8) != d(size=9)
    assert len({d(size=8), d(size=8), d(deep=True)}) == 2


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(-(10**15), 10**15),
        "ratio": st.floats(allow_nan=False),
        "deep": st.booleans(),
        "order": st.sampled_from(["row", "column"]),
        "label": st.text(max_size=8),
    },
)


@given(st.lists(OPTIONS, max_size=4))
def test_pipelines_are_read_as_they_are_printed(options):
    d = tile_loops_definition()
    pipeline = Pipeline(tuple(d(**o) for o in options))
    again = Pipeline.parse(str(pipeline))
    assert str(again) == str(pipeline)
    assert again == pipeline
    assert hash(again) == hash(pipeline)
    assert again.digest() == pipeline.digest()


def test_the_digest_follows_options_and_order():
    d, other = tile_loops_definition(), define("other", (Level.TENSOR,))
    pipelines = [Pipeline(p) for p in [(d(), other()), (other(), d()), (d(size=5), other()), (d(),)]]
    assert len({p.digest() for p in pipelines}) == 4


def test_comments_and_lines_may_stand_between_passes():
    define("first"), define("second")
    text = "first,   # cleans up\n# nothing here\n second ,"
    assert str(Pipeline.parse(text)) == "first, second"
    assert len(Pipeline.parse(" # nothing\n")) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tile-lops", "pipeline:1:1: unknown pass 'tile-lops' (did you mean 'tile-loops'?)"),
        (
            "\n  tile-loops{sise=4}",
            "pipeline:2:14: pass 'tile-loops': unknown option 'sise' (did you mean 'size'?)",
        ),
        ("tile-loops{size=x}", "pipeline:1:17: pass 'tile-loops': option 'size' expects an integer, got x"),
        ("tile-loops{size=1.5}", "option 'size' expects an integer, got 1.5"),
        ("tile-loops{deep=1}", "option 'deep' expects true or false, got 1"),
        ("tile-loops{order=up}", "option 'order' expects one of row, column, got up"),
        ("tile-loops{size=1, size=2}", "1:20: pass 'tile-loops': option 'size' is given twice"),
        ("tile-loops{size=1", "expected ',' or '}' after an option, got the end of the text"),
        ("tile-loops{size}", "expected '=' after an option name, got '}'"),
        ("tile-loops{size=}", "expected a value, got '}'"),
        ("tile-loops tile-loops", "1:12: expected ',' or '{' after a pass, got 'tile-loops'"),
        ("tile-loops; dce", "1:11: expected a pass name, an option or ',', got ';'"),
        ("{size=1}", "1:1: expected a pass name, got '{'"),
        ("x" * 200_000, "expected at most 100000 characters"),
        ("tile-loops{size=" + "9" * 5000 + "}", "option 'size' expects an integer"),
    ],
)
def test_bad_pipelines_say_where_and_what(text, message):
    tile_loops_definition()
    with pytest.raises(InputError) as e:
        Pipeline.parse(text)
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": True}, "option 'size' expects an integer, got true"),
        ({"size": 1.0}, "option 'size' expects an integer, got 1.0"),
        ({"order": "up"}, "option 'order' expects one of row, column, got up"),
        (
            {"sizes": 1},
            "unknown option 'sizes' (did you mean 'size'?); it has size, ratio, deep, order, label",
        ),
    ],
)
def test_bad_options_from_python(options, message):
    with pytest.raises(InputError) as e:
        tile_loops_definition()(**options)
    assert str(e.value) == f"pass 'tile-loops': {message}"


def test_functions_that_are_no_pass_are_refused():
    def no_doc(func: Func, ctx: PassContext) -> Func:
        return func

    def no_rewrite(func: Func, ctx: PassContext) -> Func:
        """Only words."""
        return func

    def wrong_kind(func: int, ctx: PassContext) -> int:
        """rewrite: a --> b"""
        return func

    def positional(func: Func, ctx: PassContext, size: int = 1) -> Func:
        """rewrite: a --> b"""
        return func

    def no_default(func: Func, ctx: PassContext, *, size: int) -> Func:
        """rewrite: a --> b"""
        return func

    def strange(func: Func, ctx: PassContext, *, size: list = ()) -> Func:
        """rewrite: a --> b"""
        return func

    wanted = {
        no_doc: "rewrite: before --> after",
        no_rewrite: "rewrite: before --> after",
        wrong_kind: "fn(func: Func, ctx: PassContext, ...) -> Func",
        positional: "option 'size' to be keyword-only",
        no_default: "with a default",
        strange: "int, float, bool, str or Literal",
    }
    for fn, message in wanted.items():
        with pytest.raises(InputError, match=r"pass '[a-z-]+' of .*test_passes_registry") as e:
            register_pass(Level.GRAPH)(fn)
        assert message in str(e.value)
    with pytest.raises(InputError, match="at least one level"):
        define(levels=())


def test_a_name_clash_names_both_modules():
    first = define("same-name")
    with pytest.raises(InputError) as e:

        @register_pass(Level.GRAPH)
        def same_name(func: Func, ctx: PassContext) -> Func:
            """rewrite: a --> b"""
            return func

    place = f"{__name__} ({__file__})"
    assert str(e.value) == f"pass 'same-name' is defined twice: by {place} and by {place}"
    assert find_pass("same-name") is first


def test_levels_are_checked_without_running():
    define("on-graph"), define("on-tensor", (Level.TENSOR,)), define("lower", to=Level.TENSOR)
    define("on-both", (Level.GRAPH, Level.TENSOR)), define("sink", (Level.TENSOR,), to=Level.THREAD)
    Pipeline.parse("on-graph, on-both, lower, on-tensor, on-both, sink, on-tensor")
    with pytest.raises(
        InputError, match="pass 3 of 3, 'on-graph': expected functions of level graph, there are tensor"
    ):
        Pipeline.parse("on-graph, lower, on-graph")
    with pytest.raises(InputError, match="pass 1 of 1, 'on-tensor'"):
        Pipeline.parse("on-tensor").check({Level.GRAPH})


def test_facts_are_checked_without_running():
    define("make", establishes={"tidy"}), define("spoil", breaks={"tidy"}), define("use", requires={"tidy"})
    Pipeline.parse("use")  # the module may bring the fact
    Pipeline.parse("make, use, use")
    define("keep", requires={"tidy"}, establishes={"tidy"})
    Pipeline.parse("use, keep")  # what keeps the fact does not bring it
    with pytest.raises(InputError, match="'make' establishes it and comes later"):
        Pipeline.parse("use, make")
    for bad in ("use", "make, spoil, use"):
        with pytest.raises(InputError, match="requires 'tidy', which no earlier pass establishes"):
            Pipeline.parse(bad).check({Level.GRAPH}, facts=())


def plugins(monkeypatch, *entries):
    found = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in entries]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == "tilewright.passes" else [])


PLUGIN = '''
from tilewright.ir import Func, Level
from tilewright.passes import PassContext, register_pass


@register_pass(Level.GRAPH)
def foreign_pass(func: Func, ctx: PassContext) -> Func:
    """Foreign.

    rewrite: a --> b
    """
    return func
'''


def test_installed_plugins_are_found_on_demand(monkeypatch, tmp_path):
    (tmp_path / "tilewright_plugin_sample.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    plugins(monkeypatch, ("sample", "tilewright_plugin_sample"))
    assert str(Pipeline.parse("foreign-pass")) == "foreign-pass"
    assert find_pass("foreign-pass").origin == "tilewright_plugin_sample"


def test_a_foreign_pass_takes_no_name_of_ours(monkeypatch, tmp_path):
    (tmp_path / "tilewright_plugin_dce.py").write_text(PLUGIN.replace("foreign_pass", "dce"))
    (tmp_path / "tilewright_plugin_other.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    own = "tilewright.passes.graph.simplification.dce"
    ours = f"pass 'dce' is defined twice: by {own} and by tilewright_plugin_dce"
    with pytest.raises(InputError, match=ours):
        importlib.import_module("tilewright_plugin_dce")
    assert find_pass("dce").own
    plugins(monkeypatch, ("one", "tilewright_plugin_dce"))
    with pytest.raises(InputError, match=ours):
        pass_defs()


def test_of_two_foreign_passes_of_one_name_neither_is_taken(monkeypatch, tmp_path):
    (tmp_path / "tilewright_plugin_first.py").write_text(PLUGIN)
    (tmp_path / "tilewright_plugin_second.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    plugins(monkeypatch, ("second", "tilewright_plugin_second"))
    importlib.import_module("tilewright_plugin_first")
    for ask in (lambda: find_pass("foreign-pass"), pass_defs):
        with pytest.raises(
            InputError, match=r"by tilewright_plugin_first .* and by tilewright_plugin_second"
        ):
            ask()


def test_a_broken_plugin_is_named(monkeypatch, tmp_path):
    (tmp_path / "tilewright_plugin_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins(monkeypatch, ("sick", "tilewright_plugin_broken"))
    assert find_pass("dce").name == "dce"  # our own passes do not need it
    for ask in (lambda: find_pass("no-such-pass"), pass_defs):
        with pytest.raises(
            InputError, match=r"plugin 'sick' \(tilewright_plugin_broken\): ZeroDivisionError"
        ):
            ask()


def test_every_built_in_pass_says_what_it_rewrites_and_names_known_invariants():
    from tilewright.passes import invariant_names

    definitions = pass_defs()
    assert {"dce", "cse", "fold-constants", "graph-to-tensor", "vectorise", "place-barriers"} <= {
        d.name for d in definitions
    }
    for d in definitions:
        assert "-->" in d.rewrite
        assert d.summary.endswith(".")
        assert d.requires | d.establishes | d.breaks <= set(invariant_names())
        assert d.scope in ("function", "module")


def test_nan_is_no_option():
    @register_pass(Level.GRAPH)
    def limited(func: Func, ctx: PassContext, *, limit: float = 1.0) -> Func:
        """Limit.

        rewrite: a --> b
        """
        return func

    with pytest.raises(InputError, match="option 'limit' expects a number, got nan"):
        Pipeline.parse("limited{limit=nan}")
    with pytest.raises(InputError, match="option 'limit' expects a number, got nan"):
        limited(limit=float("nan"))
    assert str(Pipeline.parse("limited{limit=-inf}")) == "limited{limit=-inf}"


def three() -> Pipeline:
    define("first"), define("second"), define("third")
    return Pipeline.parse("first, second, third, first")


@pytest.mark.parametrize(
    ("derived", "text"),
    [
        (lambda p: p.until("second"), "first"),
        (lambda p: p.since("second"), "second, third, first"),
        (lambda p: p.after("second"), "third, first"),
        (lambda p: p.without("first"), "second, third"),
        (lambda p: p.only("third", "second"), "second, third"),
        (lambda p: p.replace("second", "third, third"), "first, third, third, third, first"),
        (lambda p: p.replace("third", Pipeline()), "first, second, first"),
    ],
)
def test_a_pipeline_is_derived_from_another(derived, text):
    assert str(derived(three())) == text


@pytest.mark.parametrize(
    "derived",
    [
        lambda p: p.until("secnd"),
        lambda p: p.after("secnd"),
        lambda p: p.without("first", "secnd"),
        lambda p: p.only("secnd"),
        lambda p: p.replace("secnd", "first"),
    ],
)
def test_a_pass_that_a_pipeline_lacks_is_named(derived):
    with pytest.raises(InputError) as e:
        derived(three())
    told = "no pass 'secnd' (did you mean 'second'?); it has first, second, third"
    assert str(e.value) == f"the pipeline has {told}"


def test_a_cut_at_a_pass_that_occurs_twice_is_refused():
    with pytest.raises(InputError, match="expected a pass that occurs once, got 'first', which occurs 2 t"):
        three().until("first")


def test_a_part_of_a_pipeline_keeps_order_and_options():
    whole = three()
    assert whole.only("first", "third").is_part_of(whole)
    assert not Pipeline.parse("third, second").is_part_of(whole)
    d = tile_loops_definition()
    assert not Pipeline((d(size=5),)).is_part_of(Pipeline((d(size=6),)))
