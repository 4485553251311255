"""Which part of a network a vendor library computes: matching of kernels with library problems."""
