"""Embeddings of tokens and patches."""
