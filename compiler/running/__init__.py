"""Devices that run an executable, executables of several shapes and batches."""
