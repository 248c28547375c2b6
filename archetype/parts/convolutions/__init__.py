"""Short convolutions inside a part, which mix neighboring tokens (canon layers; Inkling)."""
