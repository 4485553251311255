"""Readers of networks of other systems, and builders of known networks (`zoo`): all give our graph level."""

from tilewright.frontends import onnx, relax, relay, torch, zoo

__all__ = ["onnx", "relax", "relay", "torch", "zoo"]
