"""Kernels that a library computes: the passes to the thread level leave them as they are."""
