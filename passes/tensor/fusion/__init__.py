"""Which ops share a kernel: partitions of a program by rules, by cost, or as large as is legal."""
