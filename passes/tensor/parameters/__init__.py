"""The parameters of each kernel: what is known before the choice, the choice, and what follows from it."""
