"""Gradients of graph functions: a rule per op where one is worth writing, derived adjoints for all others."""
