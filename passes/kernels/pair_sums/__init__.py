"""Sums over one side of pairs, with weights made of products of pairs: the backward pass of attention."""
