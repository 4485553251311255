"""Micro-benchmarks that measure a device's constants, and the files that keep them."""
