"""Which dimension of a contraction plays n, h and w, and what the model makes of samples of one row each."""

from dataclasses import replace

import pytest

from tilewright.costmodel import choose_contract, load_hardware
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.ir import parse
from tilewright.passes.kernels.kernel_problem import contract_problem, contract_roles

#: x, w, parallel and reduced dimensions, reads -> (n, h, w)
CASES = {
    "samples of merged pixels": (
        "f32[8, 64, 784]", "f32[64, 128]", "n: 8, k: 128, y_x: 784", "c: 64", "[n, c, y_x], [c, k]",
        ("n", "", "y_x"),
    ),
    "a part of the channels": (
        "f32[8, 64, 784]", "f32[32, 128]", "n: 8, k: 128, y_x: 784", "c: 32", "[n, c + 32, y_x], [c, k]",
        ("n", "", "y_x"),
    ),
    "pixels in rows": (
        "f32[64, 28, 28]", "f32[64, 128]", "k: 128, y: 28, x: 28", "c: 64", "[c, y, x], [c, k]",
        ("", "y", "x"),
    ),
    "channels last": (
        "f32[8, 28, 64]", "f32[64, 128]", "y: 8, x: 28, k: 128", "c: 64", "[y, x, c], [c, k]",
        ("", "y", "x"),
    ),
    "samples and pixels in rows": (
        "f32[8, 64, 28, 28]", "f32[64, 128]", "n: 8, k: 128, y: 28, x: 28", "c: 64", "[n, c, y, x], [c, k]",
        ("n", "y", "x"),
    ),
    "a window along the outer one": (
        "f32[9, 64, 28]", "f32[64, 2, 128]", "k: 128, y: 8, x: 28", "c: 64, r: 2", "[y + r, c, x], [c, r, k]",
        ("", "y", "x"),
    ),
    "one axis for both": (
        "f32[64, 56]", "f32[64, 128]", "k: 128, y: 2, x: 28", "c: 64", "[c, y * 28 + x], [c, k]",
        ("", "y", "x"),
    ),
    "samples of samples": (
        "f32[2, 8, 64, 784]", "f32[64, 128]", "a: 2, n: 8, k: 128, x: 784", "c: 64", "[a, n, c, x], [c, k]",
        ("n", "", "x"),
    ),
    "rows alone": ("f32[8, 64]", "f32[64, 128]", "m: 8, k: 128", "c: 64", "[m, c], [c, k]", ("", "", "m")),
}  # fmt: skip


def problem_of(
    x: str, w: str, par: str, red: str, reads: str
) -> tuple[ContractProblem, tuple[str, str, str]]:
    out = f"f32[{', '.join(d.split(':')[1].strip() for d in par.split(','))}]"
    module = parse(f"""module @m {{
      tensor.func @k(%x: {x}, %w: {w}) -> {out} {{
        %y = tensor.contract(%x, %w, par = ({par}), red = ({red}), reads = [{reads}]) : {out} {{
          ^(%a: f32, %b: f32, %c: f32)
          %r = scalar.fma(%a, %b, %c) : f32
          scalar.yield(%r)
        }}
        tensor.return(%y)
      }}
    }}""")
    kernel = module.funcs[0]
    op = kernel.body.ops[0]
    return contract_problem(kernel, op), contract_roles(op).spatial


@pytest.mark.parametrize("name", CASES)
def test_roles_of_rows(name):
    *given, wanted = CASES[name]
    problem, spatial = problem_of(*given)
    assert spatial == wanted
    # whatever plays which role, nothing of the work is lost
    sizes = [int(d.split(":")[1]) for d in given[2].split(",")]
    outputs = 1
    for size in sizes:
        outputs *= size
    assert problem.groups * problem.n * problem.k * problem.h * problem.w == outputs


def test_samples_of_one_row_cost_no_boxes_and_keep_their_tiles():
    problem, _ = problem_of(*CASES["samples of merged pixels"][:-1])
    assert (problem.n, problem.h, problem.w) == (8, 1, 784)
    gpu, cpu = load_hardware("H100"), load_hardware("cpu-opencl")
    rows = replace(problem, n=1, h=8, h_in=8)
    assert choose_contract(problem, gpu).estimate_s < choose_contract(rows, gpu).estimate_s
    assert (
        choose_contract(problem, gpu).candidates_considered
        == choose_contract(rows, gpu).candidates_considered
    )
    assert choose_contract(problem, cpu).estimate_s == choose_contract(rows, cpu).estimate_s
