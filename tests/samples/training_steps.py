"""Small networks to train, and steps run by the interpreter with their state carried along."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, Module

MLP = """module @net(parameters = ["w1", "b1", "w2"]) {
  graph.func @main(%x: f32[8, 6]) -> f32[8, 3] {
    %w1 = graph.constant(name = "w1") : f32[5, 6]
    %b1 = graph.constant(name = "b1") : f32[5]
    %w2 = graph.constant(name = "w2") : f32[3, 5]
    %0 = graph.dense(%x, %w1) : f32[8, 5]
    %1 = graph.bias_add(%0, %b1, axis = 1) : f32[8, 5]
    %2 = graph.tanh(%1) : f32[8, 5]
    %3 = graph.dense(%2, %w2) : f32[8, 3]
    graph.return(%3)
  }
}"""


def mlp(seed: int = 0, text: str = MLP) -> Module:
    """A network of two layers with seeded weights."""
    module = tw.parse(text)
    rng = np.random.default_rng(seed)
    shapes = {
        str(op["name"]): op.result.tensor.shape for op in module.main.body.ops if op.name == "graph.constant"
    }
    return module.with_constants(
        Constants({n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})
    )


def first_state(step: Module) -> dict[str, np.ndarray]:
    """The state of a step before its first run, by name."""
    names = step.input_names
    return {names[i]: step.constants[names[i]] for i, _ in step.main.updates}


def interpreted(
    step: Module,
    batches: Iterable[Sequence[np.ndarray]],
    state: Mapping[str, np.ndarray] | None = None,
    *,
    precision: str = "native",
) -> tuple[list[list[np.ndarray]], dict[str, np.ndarray]]:
    """The results of a run per batch, and the state behind the last one."""
    carried = dict(first_state(step) if state is None else state)
    out = []
    for batch in batches:
        results = tw.interpret(step, *batch, *carried.values(), precision=precision)
        count = len(results) - len(carried)
        out.append(results[:count])
        carried = dict(zip(carried, results[count:], strict=True))
    return out, carried
