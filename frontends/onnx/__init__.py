"""ONNX models: files, bytes and `ModelProto`s, read with the optional `onnx` package."""

from tilewright.frontends.onnx.load import load

__all__ = ["load"]
