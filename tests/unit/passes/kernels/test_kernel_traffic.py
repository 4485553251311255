"""Bytes that a kernel must read: what strides leave out does not count, neighbours in memory come along."""

import pytest

from tilewright.ir import parse
from tilewright.passes.kernels.kernel_problem import reached, traffic
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.view import matrix_view


def bytes_read(shape: str, par: str, at: str) -> tuple[int, int]:
    out = f"f32[{', '.join(d.split(':')[1].strip() for d in par.split(','))}]"
    module = parse(f"""module @m {{
      tensor.func @k(%x: f32{shape}) -> {out} {{
        %y = tensor.map(%x, par = ({par}), reads = [{at}]) : {out} {{
          ^(%a: f32)
          scalar.yield(%a)
        }}
        tensor.return(%y)
      }}
    }}""")
    kernel = module.funcs[0]
    return reached(kernel, kernel.params[0]), traffic(kernel)


@pytest.mark.parametrize(
    ("shape", "par", "at", "elements"),
    [
        ("[56, 56, 64]", "y: 28, x: 28, c: 64", "[y * 2, x * 2, c]", 28 * 28 * 64),
        ("[56, 56, 64]", "y: 28, x: 28, c: 64", "[y * 2 + 1, x * 2 + 1, c]", 28 * 28 * 64),
        ("[64, 56, 56]", "c: 64, y: 28, x: 28", "[c, y * 2, x * 2]", 64 * 28 * 55),
        ("[64, 640]", "c: 64, x: 20", "[c, x * 32]", 64 * 20 * 8),
        ("[56, 64]", "y: 27, r: 3, c: 64", "[y * 2 + r, c]", 55 * 64),
        ("[56, 64]", "y: 30, c: 64", "[y * 2 - 2, c]", 28 * 64),
    ],
)
def test_what_a_strided_read_brings(shape, par, at, elements):
    read, moved = bytes_read(shape, par, at)
    written = 4
    for d in par.split(","):
        written *= int(d.split(":")[1])
    assert read == 4 * elements
    assert moved == read + written


def test_a_product_of_two_parts_of_one_array_counts_it_once():
    module = parse("""module @m {
      tensor.func @k(%x: f16[16, 2048]) -> f32[16, 16] {
        %y = tensor.contract(%x, %x, par = (m: 16, n: 16), red = (c: 1024),
                             reads = [[m, c], [n, c + 1024]]) : f32[16, 16] {
          ^(%a: f16, %b: f16, %sum: f32)
          %u = scalar.cast(%a, dtype = "f32") : f32
          %v = scalar.cast(%b, dtype = "f32") : f32
          %r = scalar.fma(%u, %v, %sum) : f32
          scalar.yield(%r)
        }
        tensor.return(%y)
      }
    }""")
    kernel = module.funcs[0]
    problem = matrix_problem(kernel, matrix_view(kernel, kernel.body.ops[0]))
    assert (problem.first_bytes, problem.second_bytes) == (16 * 1024 * 2, 0)
    assert problem.result_bytes == 16 * 16 * 4
    assert problem.compulsory_bytes == traffic(kernel)
