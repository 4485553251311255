"""Emission of CUDA C and OpenCL C from thread-level ops."""
