"""The result of code generation: the text of one kernel and how to launch it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.thread.tensor_maps import ParameterMap


@dataclass(frozen=True)
class KernelParam:
    """One buffer argument, in launch order; `written` where the kernel stores to it (it may read it too)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    written: bool


@dataclass(frozen=True)
class KernelSource:
    """One kernel as C text.

    grid: blocks (work-groups) along x, y, z. block: threads (work-items) per block, one-dimensional.
    shared_bytes_static: bytes declared in the text. shared_bytes_dynamic: bytes the launch adds (CUDA only).
    origins: the `loc` of every op in the text, in order of first appearance.
    overlaps: it waits itself for the launches it depends on, so it may start before they have ended.
    releases: it lets launches that depend on it start before it ends.
    maps: tensor maps that it takes behind its parameters, by value. cluster: blocks that run together.
    """

    language: str
    entry: str
    source: str = field(repr=False)
    grid: tuple[int, int, int]
    block: int
    params: tuple[KernelParam, ...]
    shared_bytes_static: int = 0
    shared_bytes_dynamic: int = 0
    origins: tuple[str, ...] = ()
    overlaps: bool = False
    maps: tuple[ParameterMap, ...] = ()
    cluster: tuple[int, int, int] = (1, 1, 1)
    releases: bool = False

    @property
    def writes(self) -> tuple[int, ...]:
        """Positions of the parameters the kernel writes."""
        return tuple(i for i, p in enumerate(self.params) if p.written)
