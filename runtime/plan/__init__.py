"""The execution plan: plain data, its checks, its forms in files."""
