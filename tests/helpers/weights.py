"""Weights in which nothing is hidden, and distances of results: those with which the package checks parts."""

from archetype.nn.comparison import distance, randomize

__all__ = ["distance", "randomize"]
