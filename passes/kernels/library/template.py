"""Kernels of libraries as a kernel template: nothing lowers them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir import AttrRecord
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import KernelTemplate


@dataclass(frozen=True)
class LibraryParameters(AttrRecord):
    """A kernel of a library as JSON, and who provides it for which operation."""

    provider: str = field(default="", kw_only=True)
    operation: str = field(default="", kw_only=True)
    kernel: str


LIBRARY = register_template(
    KernelTemplate(
        name="library",
        parameters=LibraryParameters,
        lower=None,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)
