"""RWKV-7: a matrix memory with per-row decay that replaces the value stored under a key (Goose)."""
