"""Whole training steps beside PyTorch's: forward, loss, backward and optimizer, timed in one process."""
