"""Decoders: causal stacks (Radford 2018)."""
