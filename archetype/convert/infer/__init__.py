"""Inference of the specification of unregistered decoder families from config.json and tensor shapes."""

from archetype.convert.infer.checkpoint_info import Shapes
from archetype.convert.infer.spec import read_unknown

__all__ = ["Shapes", "read_unknown"]
