"""Reference semantics in NumPy."""
