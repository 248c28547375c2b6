"""RWKV-7: a matrix memory that decays by row and replaces what it holds under a key (Goose)."""
