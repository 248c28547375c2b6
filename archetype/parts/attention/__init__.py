"""Attention over the pairs of positions allowed by a pattern (Bahdanau 2014; Vaswani 2017; Ainslie 2023)."""
