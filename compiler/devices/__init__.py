"""Targets by name, the devices they mean, stored calibrations, and the runtime's errors as public ones."""
