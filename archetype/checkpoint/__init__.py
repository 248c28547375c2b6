"""Bytes to modules and back: weight rules, Hugging Face folders, run directories, and every durable write."""
