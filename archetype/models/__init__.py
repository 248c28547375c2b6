"""Kinds of models, one folder each, and what they share."""
