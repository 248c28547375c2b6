"""Kinds of models, a folder each, and what all of them share."""
