"""Attention residuals: sublayers attend to the outputs of earlier blocks of layers (Kimi Team 2026)."""
