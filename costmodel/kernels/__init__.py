"""Bounds and estimates of one kernel, and enumeration of its parameters."""
