"""Import rules of Relax, one file per family of ops."""
