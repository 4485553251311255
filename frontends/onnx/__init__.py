"""ONNX models: files, bytes and `ModelProto`s, read with the `onnx` package (`pip install tilewright[onnx]`)."""

from tilewright.frontends.onnx.load import load

__all__ = ["load"]
