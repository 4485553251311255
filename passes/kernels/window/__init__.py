"""Reductions over windows: pooling and depthwise convolutions."""
