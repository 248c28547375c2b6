"""Decoders of families that are not registered, read by what their files show."""

from archetype.families.unknown.clues import Shapes
from archetype.families.unknown.reading import read_unknown

__all__ = ["Shapes", "read_unknown"]
