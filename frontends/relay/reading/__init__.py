"""Relay text and JSON to a tree of expressions."""
