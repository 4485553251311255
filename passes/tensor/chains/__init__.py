"""Candidates for kernels that compute several contractions or reductions one after another."""
