"""Cutting one inference over several devices: exact halos, interval counts, objectives and searches."""
