"""The same graph with less in it: types inferred, constants and scales folded, equal and dead ops gone."""
