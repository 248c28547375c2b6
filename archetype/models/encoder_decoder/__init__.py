"""Encoder-decoders (Sutskever 2014; Vaswani 2017)."""
