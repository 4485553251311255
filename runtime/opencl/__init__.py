"""OpenCL devices: which implementations there are, which are trusted, plans loaded on them."""
