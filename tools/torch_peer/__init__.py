"""A Tilewright graph as a PyTorch module, to time the same network in PyTorch."""
