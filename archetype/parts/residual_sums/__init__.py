"""Residual sums whose terms have learned factors or norms, or factors that follow from depth (ZAYA1; Doge; Beam)."""
