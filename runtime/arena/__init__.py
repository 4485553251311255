"""Placement of buffers in one arena: lifetimes, packing, bounds."""
