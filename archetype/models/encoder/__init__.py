"""Encoders: every position sees every other (Devlin 2018)."""
