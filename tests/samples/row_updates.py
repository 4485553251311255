"""Steps that update a few rows of state, and batches whose indices name rows often, once and not at all."""

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, Module

UPDATES, ROWS, WIDTH = 40, 3000, 16


def step(
    body: str, *, updates: int = UPDATES, rows: int = ROWS, width: int = WIDTH, at: str = "i0"
) -> Module:
    """A step whose state `table` becomes what `body` computes of `%sums`, the sums of updates of its rows."""
    text = f"""module @step {{
      tensor.func @main(%u: f32[{updates}, {width}], %i: i32[{updates}], %table: f32[{rows}, {width}],
          %rate: f32[], updates = [[2, 1], [3, 2]])
          -> f32[{updates}, {width}], f32[{rows}, {width}], f32[] {{
        %read = tensor.gather(%table, %i, par = (n: {updates}, c: {width}), reads = [[n]], at = [i0, c])
          : f32[{updates}, {width}]
        %zero = tensor.map(par = (r: {rows}, c: {width}), reads = []) : f32[{rows}, {width}] {{
          %z = scalar.const(value = 0.0, dtype = "f32") : f32 scalar.yield(%z) }}
        %sums = tensor.scatter(%zero, %u, %i, par = (n: {updates}, c: {width}), reads = [[n, c], [n]],
          at = [{at}, c]) : f32[{rows}, {width}] {{
          ^(%old: f32, %new: f32) %s = scalar.add(%old, %new) : f32 scalar.yield(%s) }}
        {body}
        tensor.return(%read, %new, %rate)
      }}
    }}"""
    text = text.replace("WHOLE", f"par = (r: {rows}, c: {width})").replace("TYPE", f"f32[{rows}, {width}]")
    rng = np.random.default_rng(0)
    table = rng.standard_normal((rows, width)).astype(np.float32)
    return tw.parse(text).with_constants(Constants({"table": table, "rate": np.float32(0.25)}))


SGD = """%new = tensor.map(%table, %sums, %rate, WHOLE, reads = [[r, c], [r, c], []]) : TYPE {
  ^(%p: f32, %g: f32, %lr: f32) %d = scalar.mul(%g, %lr) : f32
  %q = scalar.sub(%p, %d) : f32 scalar.yield(%q) }"""
KEPT = """%half = tensor.map(%sums, WHOLE, reads = [[r, c]]) : TYPE {
  ^(%g: f32) %h = scalar.const(value = 0.5, dtype = "f32") : f32 %m = scalar.mul(%g, %h) : f32
  scalar.yield(%m) }
%next = tensor.map(%table, %half, WHOLE, reads = [[r, c], [r, c]]) : TYPE {
  ^(%p: f32, %g: f32) %q = scalar.add(%p, %g) : f32 scalar.yield(%q) }
%new = tensor.map(%next, %table, %rate, WHOLE, reads = [[r, c], [r, c], []]) : TYPE {
  ^(%a: f32, %b: f32, %lr: f32) %z = scalar.const(value = 0.0, dtype = "f32") : f32
  %some = scalar.gt(%lr, %z) : bool %s = scalar.select(%some, %a, %b) : f32 scalar.yield(%s) }"""
DECAY = """%new = tensor.map(%table, %sums, %rate, WHOLE, reads = [[r, c], [r, c], []]) : TYPE {
  ^(%p: f32, %g: f32, %lr: f32) %d = scalar.mul(%p, %lr) : f32
  %q = scalar.add(%d, %g) : f32 scalar.yield(%q) }"""
BY_ROW = """%new = tensor.map(%table, %sums, WHOLE, reads = [[r, c], [r, c]]) : TYPE {
  ^(%p: f32, %g: f32) %r = scalar.index(at = r) : i32 %x = scalar.cast(%r, dtype = "f32") : f32
  %d = scalar.mul(%g, %x) : f32 %q = scalar.sub(%p, %d) : f32 scalar.yield(%q) }"""
SHIFTED = """%moved = tensor.map(%sums, WHOLE, reads = [[2999 - r, c]]) : TYPE { ^(%g: f32) scalar.yield(%g) }
%new = tensor.map(%table, %moved, WHOLE, reads = [[r, c], [r, c]]) : TYPE {
  ^(%p: f32, %g: f32) %q = scalar.sub(%p, %g) : f32 scalar.yield(%q) }"""


def network(reads: int = 1) -> Module:
    """The means of rows of a table, which `reads` lookups name."""
    ids = "".join(f", %ids{k}: i32[{UPDATES}]" for k in range(reads))
    body = "".join(
        f"""
        %table{k} = graph.constant(name = "table{k}") : f32[{ROWS}, {WIDTH}]
        %rows{k} = graph.take(%table{k}, %ids{k}, axis = 0, mode = "{mode}", batch_dims = 0)
          : f32[{UPDATES}, {WIDTH}]
        %s{k + 1} = graph.multiply(%s{k}, %rows{k}) : f32[{UPDATES}, {WIDTH}]"""
        for k, mode in zip(range(reads), ("wrap", "clip"), strict=False)
    )
    listed = ", ".join(f'"table{k}"' for k in range(reads))
    text = f"""module @net(parameters = [{listed}]) {{
      graph.func @main(%s0: f32[{UPDATES}, {WIDTH}]{ids}) -> f32[{UPDATES}] {{{body}
        %out = graph.mean(%s{reads}, axis = [1], keepdims = false) : f32[{UPDATES}]
        graph.return(%out) }} }}"""
    rng = np.random.default_rng(0)
    arrays = {f"table{k}": rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for k in range(reads)}
    return tw.parse(text).with_constants(Constants(arrays))


def batch(rng: np.random.Generator, reads: int = 1) -> list[np.ndarray]:
    """Rows that many name, that one names, and that do not exist."""
    few, any_row = rng.integers(0, 3, (reads, UPDATES)), rng.integers(-3, ROWS + 3, (reads, UPDATES))
    ids = np.where(rng.random((reads, UPDATES)) < 0.5, few, any_row).astype(np.int32)
    x = rng.standard_normal((UPDATES, WIDTH)).astype(np.float32)
    return [x, *ids, rng.standard_normal(UPDATES).astype(np.float32)]
