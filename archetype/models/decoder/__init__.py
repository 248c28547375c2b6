"""Decoders: no position sees a later one (Radford 2018)."""
