"""Mamba-2: state space duality (Dao 2024)."""
