"""Search over the ways to divide images and weights among ranks."""
