"""A course in twelve notebooks: sources in `lessons`, answers in `answers`, notebooks with outputs in this folder."""
