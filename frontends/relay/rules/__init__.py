"""Import rules of Relay, one file per family of ops."""
