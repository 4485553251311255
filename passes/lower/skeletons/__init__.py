"""Skeletons: how a tensor-level kernel of each kind becomes what one thread does."""
