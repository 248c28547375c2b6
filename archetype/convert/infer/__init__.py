"""Decoders of families that are not registered, read by what their files show."""

from archetype.convert.infer.checkpoint_info import Shapes
from archetype.convert.infer.spec import read_unknown

__all__ = ["Shapes", "read_unknown"]
