"""Contractions for tests of the cost model: problems of layers, and points that divide them."""

from math import prod

import numpy as np

from tilewright.costmodel import ContractProblem
from tilewright.costmodel.kernels.parameters import ContractSpace, Staging


def matmul_problem(m: int, n: int, k: int, *, batch: int = 1, element_bytes: int = 4) -> ContractProblem:
    """The product of `batch` matrices m x k with k x n as a contract problem: rows on w, columns on k."""
    return ContractProblem(
        groups=batch, n=1, k=n, c=k, h=1, w=m, f_h=1, f_w=1, stride_h=1, stride_w=1,
        dilation_h=1, dilation_w=1, pad=(0, 0, 0, 0), h_in=1, w_in=m, element_bytes=element_bytes,
    )  # fmt: skip


def conv_problem(
    n: int, c: int, h_in: int, w_in: int, k: int, f_h: int, f_w: int, *,
    stride: tuple[int, int] = (1, 1), dilation: tuple[int, int] = (1, 1),
    pad: tuple[int, int, int, int] = (0, 0, 0, 0), groups: int = 1, extra_bytes: int = 0,
) -> ContractProblem:  # fmt: skip
    """A convolution from its input extents; `c` and `k` are totals, divided by `groups` here.

    A 1x1 stride-1 convolution without padding merges h and w into one axis, as the lowering does.
    """
    h = (h_in + pad[0] + pad[2] - (f_h - 1) * dilation[0] - 1) // stride[0] + 1
    w = (w_in + pad[1] + pad[3] - (f_w - 1) * dilation[1] - 1) // stride[1] + 1
    if f_h == f_w == 1 and stride == (1, 1) and not any(pad):
        h, w, h_in, w_in = 1, h * w, 1, h_in * w_in
    return ContractProblem(
        groups=groups, n=n, k=k // groups, c=c // groups, h=h, w=w, f_h=f_h, f_w=f_w, stride_h=stride[0],
        stride_w=stride[1], dilation_h=dilation[0], dilation_w=dilation[1], pad=pad, h_in=h_in, w_in=w_in,
        extra_bytes=extra_bytes,
    )  # fmt: skip


def dividing_points(problem: ContractProblem, staging: Staging = "shared") -> ContractSpace:
    """Every point whose thread tiles are powers of two and whose block tiles and steps divide the problem."""
    tables = [
        np.array([(t, b) for t in _powers(n) for b in range(t, n + 1, t) if n % b == 0])
        for n in (problem.n, problem.k, problem.h, problem.w)
    ]
    steps = np.array([c for c in range(1, problem.c + 1) if problem.c % c == 0])
    shape = (*map(len, tables), len(steps))
    *tiles, step = np.unravel_index(np.arange(prod(shape)), shape)
    n, k, h, w = (table[index] for table, index in zip(tables, tiles, strict=True))
    return ContractSpace(
        n_t=n[:, 0], n_b=n[:, 1], k_t=k[:, 0], k_b=k[:, 1],
        h_t=h[:, 0], h_b=h[:, 1], w_t=w[:, 0], w_b=w[:, 1],
        c_step=steps[step], stages=np.ones_like(step), smem_pad=np.zeros_like(step), staging=staging,
    )  # fmt: skip


def _powers(most: int) -> list[int]:
    return [1 << e for e in range(most.bit_length())]
