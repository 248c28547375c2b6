"""Vectors of the n-grams that end at a token, looked up in tables (LongCat-Flash-Lite; Cheng 2026, Engram)."""
