"""Attention over the pairs of positions that a pattern allows (Bahdanau 2014; Vaswani 2017; Ainslie 2023)."""
