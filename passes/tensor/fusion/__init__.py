"""Partitioning of a tensor-level program into kernels."""
