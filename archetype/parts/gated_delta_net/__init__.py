"""Gated delta networks: a matrix-valued state that is corrected and decays (Yang 2024)."""
