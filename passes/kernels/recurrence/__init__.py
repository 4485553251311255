"""Recurrences: a state that each step renews."""
