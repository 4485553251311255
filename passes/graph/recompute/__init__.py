"""What stays in memory: what is saved for the backward pass or computed again there, batches in slices."""
