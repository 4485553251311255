"""Ops made of others: formed where a kernel computes the whole, written out where none does."""
