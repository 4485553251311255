"""Foreign networks: models of other packages through every way in, beside torch's own results."""
