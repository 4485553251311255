"""ONNX models: files, bytes and `ModelProto`s, read with the optional `onnx` package."""

from tilewright.frontends.onnx.load import ImportNote, load

__all__ = ["ImportNote", "load"]
