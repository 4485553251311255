"""Chains whose products run on tensor cores, with channels between them walked in parts."""
