"""Attention in one kernel on tensor cores."""
