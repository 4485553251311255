"""Boxes of factors of attention: heads that share keys lie in equal steps by the number of their group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tilewright.ir import Expr, Sym, TensorType, Value
from tilewright.ir.expr import evaluate
from tilewright.passes.analysis.terms import Read
from tilewright.passes.kernels.attention.panels import PanelShape, boxes_of, engine_map

SIZES = {"b": 3, "h": 8, "k": 32, "c": 16}


@dataclass(frozen=True)
class Frame:
    """The extents of an attention kernel."""

    sizes: dict[str, int]
    dtype: str = "f16"

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {d: (0, n - 1) for d, n in self.sizes.items()}

    def size(self, names: tuple[str, ...]) -> int:
        return int(np.prod([self.sizes[d] for d in names]))


def _read(shape: tuple[int, ...], at: tuple[Expr, ...]) -> Read:
    return Read(Value(TensorType("f16", shape), "kv"), at)


GROUPED = _read((3, 32, 96), (Sym("b"), Sym("k"), Sym("h") // 4 * 16 + Sym("c") + 64))


@pytest.mark.parametrize(
    ("term", "extents", "start"),
    [
        (GROUPED, [3, 2], 64),
        (_read((3, 2, 32, 16), (Sym("b"), Sym("h") // 4, Sym("k"), Sym("c"))), [6], 0),
        (_read((3, 32, 128), (Sym("b"), Sym("k"), Sym("h") * 16 + Sym("c"))), [3, 8], 0),
    ],
)
def test_boxes_lie_where_the_factor_is_read(term: Read, extents: list[int], start: int) -> None:
    frame = Frame(SIZES)
    boxes = boxes_of(frame, term, "k", ("c",))
    assert boxes is not None
    assert [extent for _, extent, _ in boxes.outer] == extents
    assert (boxes.start, boxes.columns) == (start, 16)
    for b in range(3):
        for h in range(8):
            point = {"b": b, "h": h, "k": 5, "c": 7}
            read = sum(
                int(evaluate(e, point)) * s for e, s in zip(term.at, term.value.tensor.strides, strict=True)
            )
            outer = [int(evaluate(e, {})) for e in boxes.coordinates({"b": b, "h": h})]
            steps = [step for _, _, step in boxes.outer]
            place = boxes.start + sum(o * s for o, s in zip(outer, steps, strict=True))
            assert read == place + 5 * boxes.rows[1] + 7
    shape = PanelShape.of(32, 16, "f16")
    assert engine_map(frame, term, "k", ("c",), shape, 0) is not None


@pytest.mark.parametrize(
    "index",
    [Sym("h") % 4 * 16 + Sym("c"), (Sym("h") + Sym("b")) // 4 * 16 + Sym("c"), Sym("k") // 4 * 16 + Sym("c")],
)
def test_what_lies_in_no_equal_steps_is_no_box(index: Expr) -> None:
    assert boxes_of(Frame(SIZES), _read((3, 32, 160), (Sym("b"), Sym("k"), index)), "k", ("c",)) is None
