"""What the boundary between two kernels of a replay costs."""

#: seconds from the end of a launch to the start of one that waits for it, on whichever stream: what one more
#: kernel costs in a row of them, beside its own time; docs/profiling.md says how a profile measures it
BOUNDARY_S = 1e-6
