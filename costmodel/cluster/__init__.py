"""The cluster model: how long a training step takes on many devices, and the fastest way to divide it."""
