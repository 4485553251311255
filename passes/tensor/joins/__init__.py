"""Kernels that become one: gates, recurrences, maps of one launch, sums beside what they sum."""
