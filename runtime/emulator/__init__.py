"""CUDA kernels on the processor, one fiber for each CUDA thread."""
