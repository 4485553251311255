"""Weights of networks: files of named tensors, seeded random values, arrays made when they are read."""
