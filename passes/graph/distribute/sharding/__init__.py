"""Which dimensions of an op may be divided among ranks, and the program of one rank."""
