"""Vectors of the n-grams that end at a token, added to its own (LongCat-Flash-Lite)."""
