"""Choice of the order in which the dimensions of each tensor are stored."""
