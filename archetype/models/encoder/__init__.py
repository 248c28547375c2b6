"""Encoders: bidirectional stacks (Devlin 2018)."""
