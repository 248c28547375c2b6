"""Gated short convolutions (LFM2)."""
