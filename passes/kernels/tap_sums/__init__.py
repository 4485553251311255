"""Sums over images for every tap of a window, such as gradients by the weights of depthwise convolutions."""
