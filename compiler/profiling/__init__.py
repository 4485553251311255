"""Profiles and traces of an executable, measured and modelled."""
