"""Relay: text, JSON and live modules of TVM 0.19 and older."""

from tilewright.frontends.relay.load import from_module, load

__all__ = ["from_module", "load"]
