"""What a kernel must do and move by its definition, and what it moves by its cut."""
