"""The order in which the dimensions of each value are stored, chosen over the whole network."""
