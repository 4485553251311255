"""Contractions on tensor cores."""
