"""Recurrences of a batch on tensor cores: blocks of clusters keep weights in fragments, share the state."""
