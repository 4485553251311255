"""Choosing by measurement: networks, algorithms, streams and their reports."""
