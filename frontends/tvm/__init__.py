"""Functional programs and operators that the two languages of TVM, Relay and Relax, have in common."""
