"""Disentangled attention: scores combine contents and relative positions (He 2020, DeBERTa)."""
