"""Sums over thousands of rows: their error against float64, in threads that add them up alone."""

import numpy as np
import pytest
from decision_samples import with_template

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir import Pairs, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.rows.partial_sums import LONGEST_CHAIN, SHORTEST_RUN, run_of

ROWS, COLUMNS = 1 << 14, 64


def module(rows, layout):
    """The sum over the rows of an array that lies row by row, or column by column."""
    shape, at = (f"{rows}, {COLUMNS}", "n, c") if layout == "rows" else (f"{COLUMNS}, {rows}", "c, n")
    return parse(f"""module @net {{
      tensor.func @main(%x: f32[{shape}]) -> f32[{COLUMNS}] {{
        %0 = tensor.reduce(%x, par = (c: {COLUMNS}), red = (n: {rows}), reads = [[{at}]],
          init = [0.0]) : f32[{COLUMNS}] {{
          ^(%a: f32, %acc: f32) %m = scalar.add(%a, %acc) : f32 scalar.yield(%m) }}
        tensor.return(%0)
      }}
    }}""")


def error_of(rows, layout, template, params):
    """The error of the sums of normal numbers over their size, both as roots of mean squares; and that of
    one chain of additions per column.
    """
    target = resolve_target("opencl")
    context = PassContext(target=str(target), hardware=target.hardware)
    kernels = run_pipeline(module(rows, layout), Pipeline.parse("fuse-kernels, choose-parameters"), context)
    named = Pairs.of(dict(zip(("threads_per_row", "rows_per_block", "vec"), params, strict=True)))
    forced = (f if f.name == "main" else with_template(f, template, named) for f in kernels.funcs)
    x = np.random.default_rng(1).standard_normal((rows, COLUMNS)).astype(np.float32)
    exact = x.astype(np.float64).sum(axis=0)
    with tw.compile(kernels.with_funcs(tuple(forced)), "opencl") as exe:
        (sums,) = exe(x if layout == "rows" else np.ascontiguousarray(x.T))
    chain = np.add.accumulate(x, axis=0)[-1]
    return [np.linalg.norm(y - exact) / np.linalg.norm(exact) for y in (sums, chain)]


@pytest.mark.parametrize(
    ("layout", "template", "params"),
    [
        ("rows", "rows_across", (1, 4, 4)),
        ("columns", "rows_kept", (1, 32, 1)),
        ("columns", "rows", (1, 4, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [ROWS, ROWS - 27], ids=str)
def test_one_thread_rounds_less_than_one_chain(rows, layout, template, params):
    ours, chain = error_of(rows, layout, template, params)
    assert ours < 1e-6 < 2e-6 < chain, (ours, chain)


@pytest.mark.parametrize(("combines", "inexact"), [("add", True), ("add", False), ("max", True)])
@pytest.mark.parametrize("steps", [1, LONGEST_CHAIN, 33, 48, 97, 1568, ROWS])
def test_runs_of_steps(combines, inexact, steps):
    dtype = "f32" if inexact else "i32"
    func = parse(f"""module @net {{
      tensor.func @main(%x: {dtype}[2, {steps}]) -> {dtype}[2] {{
        %0 = tensor.reduce(%x, par = (c: 2), red = (n: {steps}), reads = [[c, n]], init = [0]) : {dtype}[2] {{
          ^(%a: {dtype}, %acc: {dtype}) %m = scalar.{combines}(%a, %acc) : {dtype} scalar.yield(%m) }}
        tensor.return(%0)
      }}
    }}""").main
    run = run_of([func.body.ops[0]], steps)
    if steps <= LONGEST_CHAIN or combines == "max" or not inexact:
        assert run == steps  # nothing is gained
    else:
        assert run >= SHORTEST_RUN
        assert run + steps / run < max(0.5 * steps, 3 * steps**0.5)
