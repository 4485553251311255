"""Products and convolutions: which of them become one, and how convolutions are computed."""
