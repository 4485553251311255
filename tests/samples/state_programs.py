"""Random modules with state, of few elements that are whole numbers, which floats hold exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tilewright.ir import Builder, Constants, Func, Level, Module, TensorType, Value

SHAPE = (3, 4)
_T = TensorType("f32", SHAPE)
#: op, number of operands, attributes; each takes and gives arrays of SHAPE
_OPS = (
    ("add", 2), ("subtract", 2), ("maximum", 2), ("negative", 1), ("reverse", 1), ("reshaped", 1),
    ("summed", 1), ("joined", 2), ("product", 2),
)  # fmt: skip


def _emit(b: Builder, name: str, x: list[Value]) -> Value:
    """A value of SHAPE; whatever the op, its elements are whole and within -8..8."""
    if name == "reverse":
        y = b.value("graph.reverse", x[0], axis=1)
    elif name == "reshaped":  # the elements in another order: row-major transposed
        y = b.value("graph.reshape", b.value("graph.transpose", x[0], axes=(1, 0)), newshape=SHAPE)
    elif name == "summed":
        total = b.value("graph.sum", x[0], axis=(1,), keepdims=True)
        y = b.value("graph.broadcast_to", total, shape=SHAPE)
    elif name == "joined":
        pair = b.value("graph.concatenate", x[0], x[1], axis=0)
        y = b.value("graph.strided_slice", pair, begin=(1, 0), size=SHAPE, strides=(1, 1))
    elif name == "product":
        square = b.value("graph.dense", x[0], x[1])
        first = b.value("graph.strided_slice", square, begin=(0, 0), size=(3, 1), strides=(1, 1))
        y = b.value("graph.add", first, x[0])
    else:
        y = b.value(f"graph.{name}", *x)
    return b.value("graph.clip", y, a_min=-8.0, a_max=8.0)


@st.composite
def state_modules(draw: st.DrawFn) -> Module:
    """A module with 0 to 2 inputs and 1 to 4 arrays of state, each updated by any value of the module."""
    inputs = draw(st.integers(0, 2))
    states = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    b = Builder()
    params = [Value(_T, f"x{i}") for i in range(inputs)] + [Value(_T, f"s{i}") for i in range(states)]
    constants = {f"s{i}": _whole(rng) for i in range(states)}
    values = list(params)
    if draw(st.booleans()):
        constants["fixed"] = _whole(rng)
        values.append(b.emit("graph.constant", (), {"name": "fixed"}, types=[_T])[0])
    for _ in range(draw(st.integers(0, 8))):
        name, count = draw(st.sampled_from(_OPS))
        values.append(_emit(b, name, [draw(st.sampled_from(values)) for _ in range(count)]))
    new = [draw(st.sampled_from(values)) for _ in range(states)]
    own = [draw(st.sampled_from(values)) for _ in range(draw(st.integers(0, 3)))]
    order = draw(st.permutations(range(len(new) + len(own))))
    results = [(*new, *own)[i] for i in order]
    b.do("graph.return", *results)
    updates = tuple((inputs + i, order.index(i)) for i in range(states))
    attrs = (("updates", updates),)
    main = Func(Level.GRAPH, "main", b.block(tuple(params)), tuple(v.type for v in results), attrs)
    return replace(Module("step", (main,)), constants=Constants(constants))


def step_inputs(module: Module, seed: int) -> list[np.ndarray]:
    """Inputs of one step: those parameters that are no state."""
    rng = np.random.default_rng(seed)
    return [_whole(rng) for _ in range(len(module.input_names) - len(module.state_names))]


def _whole(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-4, 5, SHAPE).astype(np.float32)
