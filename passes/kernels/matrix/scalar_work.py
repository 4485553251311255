"""Instructions of the scalar ops of a kernel, roughly: what an estimate charges for work beside a product."""

from __future__ import annotations

from collections.abc import Iterable

#: per op, where it is not one; those of the math library as NVRTC compiles them for sm_90
INSTRUCTIONS = {
    "cast": 0.5, "const": 0.0, "yield": 0.0, "sigmoid": 8.0, "exp": 6.0, "exp2": 4.0, "div": 8.0,
    "rsqrt": 4.0, "sqrt": 6.0, "log": 8.0, "log2": 8.0, "log10": 8.0, "tanh": 20.0, "erf": 20.0, "pow": 30.0,
    "sin": 20.0, "cos": 20.0, "tan": 30.0, "mod": 20.0, "truncmod": 20.0, "truncdiv": 10.0,
}  # fmt: skip


def instructions(ops: Iterable[str]) -> float:
    """Instructions of ops by name (`scalar.add`), once each."""
    return sum(INSTRUCTIONS.get(name.removeprefix("scalar."), 1.0) for name in ops)
