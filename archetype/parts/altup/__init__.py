"""Alternating updates: residual streams of which a block computes one and predicts the others (Baykal 2023)."""
