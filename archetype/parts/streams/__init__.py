"""Residual streams that are read, written and mixed with learned weights (Zhu 2024; Xie 2025)."""
