"""Data movement of networks: kernels beside what they must move, operators before fusion, layouts."""
