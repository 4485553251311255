"""Hardware records, their calibration, and the check of measurements against them."""
