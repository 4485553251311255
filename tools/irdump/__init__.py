"""`irdump`: shows a network at every level and runs single passes."""
