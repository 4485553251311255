"""Random graphs: a few ops of every kind, drawn on top of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tilewright.ir import InputError
from tilewright.tools.fuzz import draw_elementwise, draw_images, draw_indexing, draw_layers, draw_movement
from tilewright.tools.fuzz.draw_adjoints import draw_adjoint
from tilewright.tools.fuzz.program import RandomGraph, Rejected

#: appends ops to a program; what it returns says nothing
Drawer = Callable[[RandomGraph], object]

_DIRECT: Mapping[str, Drawer] = {
    **draw_elementwise.DRAWERS,
    **draw_layers.DRAWERS,
    **draw_movement.DRAWERS,
    **draw_indexing.DRAWERS,
    **draw_images.DRAWERS,
}
#: a drawer by name; every graph op is the first word of one
DRAWERS: Mapping[str, Drawer] = {**_DIRECT, "adjoint": partial(draw_adjoint, drawers=_DIRECT)}
#: every family is drawn as often as its weight says, whatever the number of its ops
_FAMILIES = (
    *(tuple(m.DRAWERS) for m in (draw_elementwise, draw_layers, draw_movement, draw_indexing, draw_images)),
    ("adjoint",),
)
_WEIGHTS = (0.34, 0.22, 0.22, 0.14, 0.05, 0.03)
#: ops that appear in a module without being drawn
UNDRAWN = frozenset(
    {"constant", "return", "send", "recv", "halo_exchange", "all_gather", "all_reduce", "reduce_scatter"}
)


def generate(seed: int, most: int = 12) -> RandomGraph:
    """A program of 1 to `most` drawn ops; the same seed gives the same program."""
    p = RandomGraph(seed)
    count = p.integer(1, most)
    for _ in range(8 * count):
        family = _FAMILIES[int(p.rng.choice(len(_FAMILIES), p=_WEIGHTS))]
        draw(p, p.choose(family))
        if sum(op.name != "graph.constant" for op in p.builder.ops) >= count:
            break
    return p


def draw(p: RandomGraph, name: str) -> bool:
    """Append what drawer `name` draws; false where it rejected its own choices."""
    try:
        DRAWERS[name](p)
    except (Rejected, InputError):
        return False
    return True
