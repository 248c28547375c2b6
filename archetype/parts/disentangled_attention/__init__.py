"""Disentangled attention: contents and distances meet each other in scores (He 2020, DeBERTa)."""
