"""One module per command of the `tilewright` program."""
