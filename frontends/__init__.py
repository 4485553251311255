"""Readers of networks of other systems: each submodule turns its kind into our graph level."""

from tilewright.frontends import relay

__all__ = ["relay"]
