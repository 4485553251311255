"""Pieces of values on ranks: how ops follow them, and the program of one rank."""
