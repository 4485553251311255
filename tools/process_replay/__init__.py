"""Process replay: the networks compiled by two commits, their kernels and plans compared."""
