"""RWKV-4: attention without queries, as a recurrence of two sums for each feature."""
