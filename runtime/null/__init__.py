"""A device that computes nothing, for schedulers and tests."""
