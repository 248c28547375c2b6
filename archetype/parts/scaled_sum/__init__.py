"""Residual sums divided by the square root of the number of their terms (Beam, Reflection AI 2026)."""
