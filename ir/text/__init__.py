"""The textual form of a module: grammar, parser, printer."""
