"""The dimensions in which values and kernels are computed: dropped, merged, split, taken from views."""
