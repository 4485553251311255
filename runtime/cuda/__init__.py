"""Plans on an NVIDIA GPU through the CUDA driver."""
