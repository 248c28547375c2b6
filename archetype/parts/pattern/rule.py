"""Imports that register the rules of the patterns in this folder."""

from archetype.parts.pattern import blocks, window

__all__ = ["blocks", "window"]
