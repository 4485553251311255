"""What of the forward pass is saved for the backward pass, and what is computed again there."""
