"""Per-layer inputs: a vector per token from the embedding, gated into one layer's stream (Gemma 3n)."""
