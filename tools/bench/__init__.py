"""The benchmark: networks and kernels beside PyTorch, in one process, interleaved, results checked first."""
