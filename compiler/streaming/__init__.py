"""Networks whose weights do not fit: steps that stream through device memory from storage."""
