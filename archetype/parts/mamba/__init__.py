"""Mamba: a selective state space (Gu 2023)."""
