"""Import rules of ONNX, one file per family of ops."""
