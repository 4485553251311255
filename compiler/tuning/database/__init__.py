"""The tuning database: its records, its file and how records travel between machines."""
