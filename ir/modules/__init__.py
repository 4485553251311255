"""Whole modules of all levels: their text, their comparison, and the checks against the op definitions."""
