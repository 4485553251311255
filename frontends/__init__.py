"""Readers of networks of other systems: each submodule turns its kind into our graph level."""

from tilewright.frontends import onnx, relax, relay, torch

__all__ = ["onnx", "relax", "relay", "torch"]
