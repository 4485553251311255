"""Tensors on storage: files made for direct reads, and readers that keep ahead of their use."""
