"""What the two languages of TVM, Relay and Relax, have in common: functional programs and many operators."""
