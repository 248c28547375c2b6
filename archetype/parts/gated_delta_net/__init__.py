"""Gated delta nets: a matrix of state that is corrected and decays (Yang 2024)."""
