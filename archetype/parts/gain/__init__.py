"""Learned factors of features inside a part (nGPT)."""
