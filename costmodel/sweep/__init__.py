"""The space of layouts and knobs of kernels, counted and priced: orders of every tensor's dimensions."""
