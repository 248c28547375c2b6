"""Heads: vectors to logits of tokens or classes."""
