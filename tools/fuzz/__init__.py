"""Fuzzing: random valid graphs whose compiled results must be those of the reference semantics."""
