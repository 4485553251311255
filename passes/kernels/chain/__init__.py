"""Contractions and reductions in one kernel, one after another."""
