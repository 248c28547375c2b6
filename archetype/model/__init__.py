"""Parts assembled into whole models."""

from archetype.model.build import Model, build, skeleton
from archetype.model.decoder import Decoder

__all__ = ["Decoder", "Model", "build", "skeleton"]
