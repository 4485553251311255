"""Rewriting of functions: patterns, dead ops, fresh names and constants."""
