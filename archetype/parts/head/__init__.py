"""Heads: from vectors to logits of tokens or classes."""
