"""Rows whose elements are sums of several parts: what they read, and how many blocks share it."""

from tilewright.costmodel import load_hardware
from tilewright.costmodel.kernels.parameters import RowReduceParameters
from tilewright.ir import parse
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.kernel_problem import reached, row_problem, traffic
from tilewright.passes.kernels.rows.choice import choose_rows_of

H200 = load_hardware("cuda:sm_90a:h200")
ROWS, COLUMNS = 128, 768


def rows_of_sums(parts, step=1):
    """Rows less their maxima, where each element is the sum of so many arrays."""
    places = ", ".join(f"[{i * step}, m, c]" for i in range(parts))
    names = [f"%a{i}" for i in range(parts)]
    sums = "\n".join(
        f"%s{i} = scalar.add({'%a0' if i == 1 else f'%s{i - 1}'}, %a{i}) : f32" for i in range(1, parts)
    )
    last = "%a0" if parts == 1 else f"%s{parts - 1}"
    operands = ", ".join(["%x"] * parts)
    body = f"^({', '.join(f'{n}: f32' for n in names)})\n{sums}\nscalar.yield({last})"
    rows, array = f"par = (m: {ROWS}", f"f32[{ROWS}, {COLUMNS}]"
    walked = "reads = [[m, c]], init = [-inf]"
    return parse(f"""module @m {{
      tensor.func @k(%x: f32[{parts}, {ROWS}, {COLUMNS}]) -> {array} {{
        %0 = tensor.map({operands}, {rows}, c: {COLUMNS}), reads = [{places}]) : {array} {{
          {body}
        }}
        %1 = tensor.reduce(%0, {rows}), red = (c: {COLUMNS}), {walked}) : f32[{ROWS}] {{
          ^(%a: f32, %acc: f32)
          %s = scalar.max(%a, %acc) : f32
          scalar.yield(%s)
        }}
        %2 = tensor.map(%0, %1, {rows}, c: {COLUMNS}), reads = [[m, c], [m]]) : {array} {{
          ^(%a: f32, %b: f32)
          %s = scalar.sub(%a, %b) : f32
          scalar.yield(%s)
        }}
        tensor.return(%2)
      }}
    }}""")["k"]


def test_parts_that_lie_apart_are_read_all():
    one, eight = rows_of_sums(1), rows_of_sums(8)
    whole = ROWS * COLUMNS * 4
    assert [row_problem(k).bytes_read for k in (one, eight)] == [whole, 8 * whole]
    assert [reached(k, k.params[0]) for k in (one, eight)] == [whole, whole]
    # the same place twice is read once
    twice = rows_of_sums(8, step=0)
    assert row_problem(twice).bytes_read == whole
    assert traffic(twice) == traffic(one)


def test_more_blocks_share_what_more_parts_have_to_be_read():
    found = {n: choose_rows_of(rows_of_sums(n), H200) for n in (1, 8, 32)}
    blocks = {n: ROWS // parameters_of(k, RowReduceParameters).rows_per_block for n, k in found.items()}
    assert blocks[1] < blocks[8] <= blocks[32]
    assert blocks[8] >= 64
