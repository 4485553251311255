"""Builders of binaries and their caches."""
