"""The op that a kernel is built around."""

from __future__ import annotations

from tilewright.ir import Func, InputError, Op


def anchor_of(kernel: Func, *names: str) -> Op:
    """The only op of the kernel with one of these names."""
    found = [op for op in kernel.body.ops if op.name in names]
    if len(found) != 1:
        raise InputError(f"expected one {' or '.join(names)}, got {len(found)}", where=f"@{kernel.name}")
    return found[0]
