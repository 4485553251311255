"""Measurements by ranks: the machine they run on, and the components of a run."""
