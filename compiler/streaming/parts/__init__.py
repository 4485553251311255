"""What a streamed network or training step is cut into, and in which order its pieces run."""
