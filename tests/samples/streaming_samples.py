"""Small networks for tests of streaming, with few kernels: a look-up table and two products."""

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, Module

ROWS, WIDTH = 96, 16


def table_network() -> Module:
    """Rows of a table, two products with residual, a product with the table: [2, 3] numbers to [2, 3, 96]."""
    text = f"""
    module @table {{
      graph.func @main(%i: i32[2, 3]) -> f32[2, 3, {ROWS}] {{
        %t = graph.constant(name = "t") : f32[{ROWS}, {WIDTH}]
        %a = graph.constant(name = "a") : f32[{WIDTH}, {WIDTH}]
        %b = graph.constant(name = "b") : f32[{WIDTH}, {WIDTH}]
        %0 = graph.take(%t, %i, axis = 0) : f32[2, 3, {WIDTH}]
        %1 = graph.dense(%0, %a) : f32[2, 3, {WIDTH}]
        %2 = graph.add(%0, %1) : f32[2, 3, {WIDTH}]
        %3 = graph.dense(%2, %b) : f32[2, 3, {WIDTH}]
        %4 = graph.add(%2, %3) : f32[2, 3, {WIDTH}]
        %5 = graph.dense(%4, %t) : f32[2, 3, {ROWS}]
        graph.return(%5)
      }}
    }}
    """
    rng = np.random.default_rng(0)
    shapes = {"t": (ROWS, WIDTH), "a": (WIDTH, WIDTH), "b": (WIDTH, WIDTH)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    return tw.parse(text).with_constants(Constants(arrays))


def numbers(seed: int = 0) -> np.ndarray:
    """An input for `table_network`, with numbers beyond the table on both sides."""
    return np.random.default_rng(seed).integers(-3, ROWS + 3, (2, 3)).astype(np.int32)
