"""Translations of torch operators where TVM's importer has none, or one that differs from torch."""
