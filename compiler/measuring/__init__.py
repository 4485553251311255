"""Measuring on a device: programs, plans and whole networks are timed, within a budget."""
