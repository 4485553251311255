"""Helpers with inline PTX or atomics: asynchronous copies, matrix fragments, atomic additions."""
