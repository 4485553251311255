"""Conformance: recorded operator cases, ONNX node tests and whole networks on every target of a machine."""
