"""Reductions along rows and what follows them."""
