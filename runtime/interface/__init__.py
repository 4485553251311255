"""What every device offers, and what is loaded on it."""
