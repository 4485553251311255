"""Search for the parameters of one kernel: candidates, measurements and checks of their results."""
