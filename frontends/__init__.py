"""Readers of other systems' networks: each submodule turns one kind of file or module into our graph level."""

from tilewright.frontends import relay

__all__ = ["relay"]
