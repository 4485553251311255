"""Chains: kernels of several products or sums one after another, whose intermediates are not stored."""
