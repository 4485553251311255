"""Library kernels: what a plan stores of one, and the libraries that run it (raw pointers, one stream).

Nothing here allocates device memory: workspaces are buffers of the plan.
"""
