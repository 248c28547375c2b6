"""What can be learned: one file for each kind of data."""
