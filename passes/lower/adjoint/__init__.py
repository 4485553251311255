"""Derived adjoints: the tensor ops that an op is lowered to, transposed one by one."""
