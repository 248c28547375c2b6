"""Real-gated linear recurrent units (Griffin)."""
