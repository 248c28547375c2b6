"""Per-layer inputs: a vector of each token that the embedding gives one layer, gated into its stream (Gemma 3n)."""
