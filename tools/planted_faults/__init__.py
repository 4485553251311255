"""Planted faults: wrong changes of the compiler, and the tests that must fail with each."""
