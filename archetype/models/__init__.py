"""Kinds of models, one folder each, and their shared code."""
