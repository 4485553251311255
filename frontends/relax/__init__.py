"""Relax: live modules of apache-tvm 0.25 to 0.27."""

from tilewright.frontends.relax.load import from_module

__all__ = ["from_module"]
