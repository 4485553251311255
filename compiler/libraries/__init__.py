"""Vendor libraries as competitors of our own kernels: candidates, comparison and choice."""
