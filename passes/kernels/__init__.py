"""Kernel families: what each matches, its parameters, its cost and its lowering."""
