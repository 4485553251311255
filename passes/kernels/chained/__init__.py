"""Two products in one kernel: the finished rows of the first are the first factor of the second."""
