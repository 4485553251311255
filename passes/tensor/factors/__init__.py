"""Factors of products: the numbers they may be rounded to, the order and form in which they are stored."""
