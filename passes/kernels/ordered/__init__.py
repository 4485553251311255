"""Scans and scatters, whose steps keep their order."""
