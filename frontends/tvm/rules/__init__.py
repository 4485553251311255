"""Import rules of operators that Relay and Relax share, one file per family of ops."""
