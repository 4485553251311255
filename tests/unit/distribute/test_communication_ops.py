"""Communication ops: inference, their sentences, and that passes, printer and parser keep them."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.builder import Builder
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.communication import HaloPiece, halo_pieces
from tilewright.ir.modules.compare import equal
from tilewright.ir.nodes import Func, Level, Module, Value
from tilewright.ir.types import TensorType
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.pipeline import Pipeline
from tilewright.passes.framework.runner import run_pipeline
from tilewright.passes.pipelines import GRAPH

PAIR = {"rank": 0, "ranks": (0, 1)}
OWNED = ((0, 4), (4, 8))
NEEDED = ((0, 5), (3, 8))


def emit(name, **attrs):
    operands = () if name == "recv" else (Value(TensorType("f32", (2, 4)), "x"),)
    return Builder().emit(f"graph.{name}", operands, attrs)


def every_op():
    """A module of rank 0 with each op twice: what cse would merge and dce would drop."""
    x = Value(TensorType("f32", (2, 4)), "x")
    b = Builder("test:op")
    for _ in range(2):
        b.emit("graph.send", (x,), {"to": 1, "tag": 7})
        b.emit("graph.recv", (), {"source": 1, "tag": 7, "dtype": "f32", "shape": (3,)})
        b.value("graph.halo_exchange", x, axis=1, owned=OWNED, needed=NEEDED, tag=3, **PAIR)
        b.value("graph.all_gather", x, axis=1, extents=(4, 2), **PAIR)
        b.value("graph.all_reduce", x, reduction="max", **PAIR)
        b.value("graph.reduce_scatter", x, axis=1, extents=(1, 3), **PAIR)
    y = b.value("graph.relu", x)
    b.emit("graph.return", (y,))
    return Module("m", (Func(Level.GRAPH, "main", b.block((x,)), (y.type,)),))


def test_results():
    (y,) = emit("halo_exchange", axis=-1, owned=OWNED, needed=NEEDED, **PAIR)
    assert y.type == TensorType("f32", (2, 5))
    (y,) = emit("all_gather", axis=0, extents=(2, 0), **PAIR)
    assert y.type == TensorType("f32", (2, 4))
    (y,) = emit("reduce_scatter", axis=1, extents=(1, 3), **PAIR)
    assert y.type == TensorType("f32", (2, 1))
    (y,) = emit("recv", source=1, dtype="f16", shape=(0, 3))
    assert y.type == TensorType("f16", (0, 3))
    assert emit("send", to=1) == ()


@pytest.mark.parametrize(
    ("name", "attrs", "message"),
    [
        ("send", {"to": -1}, "send: expected a rank and a tag of at least 0, got -1 and 0"),
        ("all_reduce", {"rank": 2, "ranks": (0, 1)}, r"'rank' to be a position in \[0, 1\], got 2"),
        ("all_reduce", {"rank": 0, "ranks": (1, 1)}, r"distinct ranks of at least 0, got \[1, 1\]"),
        ("all_reduce", {**PAIR, "reduction": "mean"}, "expected a reduction sum or max, got 'mean'"),
        (
            "all_gather",
            {**PAIR, "axis": 1, "extents": (3, 1)},
            "an extent of 3 along axis 1 at rank 0",
        ),
        ("all_gather", {**PAIR, "axis": 1, "extents": (4,)}, "expected 2 extents of at least 0"),
        ("all_gather", {**PAIR, "axis": 2, "extents": (4, 1)}, r"an axis in \[-2, 1\], got 2"),
        ("reduce_scatter", {**PAIR, "axis": 1, "extents": (3, 3)}, "an extent of 6 along axis 1, the sum"),
        (
            "halo_exchange",
            {**PAIR, "axis": 1, "owned": ((0, 3), (3, 8)), "needed": NEEDED},
            r"expected rows \[0, 3\) along axis 1, which rank 0 owns",
        ),
        (
            "halo_exchange",
            {**PAIR, "axis": 1, "owned": ((0, 4), (5, 8)), "needed": NEEDED},
            r"an owner of rows \[4, 5\) that member 0 needs",
        ),
        (
            "halo_exchange",
            {**PAIR, "axis": 1, "owned": OWNED, "needed": ((5, 0), (3, 8))},
            r"expected 2 intervals \[start, end\] of rising numbers in 'needed', got \[\[5, 0\], \[3, 8\]\]",
        ),
    ],
)
def test_sentences(name, attrs, message):
    with pytest.raises(InputError, match=message):
        emit(name, **attrs)


def test_rows_come_from_the_rank_itself_else_from_the_first_owner():
    owned = ((0, 4), (2, 6), (3, 9))
    assert halo_pieces(owned, ((0, 0), (1, 8), (0, 9)), 0) == ()
    assert halo_pieces(owned, ((0, 0), (1, 8), (0, 9)), 1) == (
        HaloPiece(0, 1, 2),
        HaloPiece(1, 2, 6),
        HaloPiece(2, 6, 8),
    )
    assert halo_pieces(owned, ((0, 0), (1, 8), (0, 9)), 2) == (HaloPiece(0, 0, 3), HaloPiece(2, 3, 9))


def test_the_default_graph_pipeline_keeps_them_and_their_order():
    module = every_op()
    after = run_pipeline(module, GRAPH, PassContext(verify_each=True))
    assert [op.name for op in after.main.body.ops] == [op.name for op in module.main.body.ops]
    half = run_pipeline(module, Pipeline.parse("mixed-precision"), PassContext(verify_each=True))
    assert [op.name for op in half.main.body.ops] == [op.name for op in module.main.body.ops]


def test_text_reads_back():
    module = every_op()
    assert equal(tw.parse(tw.show(module)), module)


def test_one_rank_alone_is_not_interpreted():
    with pytest.raises(UnsupportedError, match=r"graph.send takes part .* the modules of all ranks"):
        tw.interpret(every_op(), np.zeros((2, 4), np.float32))
