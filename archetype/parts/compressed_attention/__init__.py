"""Compressed attention: a window of keys, and one pooled key for each few earlier positions (DeepSeek-AI 2026, V4)."""
