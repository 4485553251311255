"""What is computed of a value, and from where its readers read it: parts, copies, maps, moved rows."""
