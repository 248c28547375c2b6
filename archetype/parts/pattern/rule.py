"""The rules of the kinds of this folder, by which they are registered."""

from archetype.parts.pattern import blocks, window

__all__ = ["blocks", "window"]
