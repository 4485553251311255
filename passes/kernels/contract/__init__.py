"""Contractions on general cores."""
