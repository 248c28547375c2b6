"""Residual sums whose terms have learned factors, or norms (ZAYA1; Doge)."""
