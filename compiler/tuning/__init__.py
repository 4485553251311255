"""Choosing by measurement: the parameters of kernels and the algorithms of convolutions."""
