"""Parts assembled into whole models."""

from archetype.model.build import Model, build, skeleton
from archetype.model.causal import CausalModel
from archetype.model.decoder import Decoder
from archetype.model.encoder import Encoder
from archetype.model.encoder_decoder import EncoderDecoder
from archetype.model.megabyte import MegaByte
from archetype.model.ngram import NGram
from archetype.model.vision import VisionEncoder

__all__ = [
    "CausalModel",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "MegaByte",
    "Model",
    "NGram",
    "VisionEncoder",
    "build",
    "skeleton",
]
