"""Which values are stored and multiplied in fewer bits, and what keeps their range."""
