"""Parts assembled into whole models."""

from archetype.models.build import GenerativeModel, Model, build, build_on_meta
from archetype.models.causal import CausalModel
from archetype.models.decoder import Decoder
from archetype.models.encoder import Encoder
from archetype.models.encoder_decoder import EncoderDecoder
from archetype.models.megabyte import MegaByte
from archetype.models.ngram import NGram
from archetype.models.output import Output
from archetype.models.vision import VisionEncoder

__all__ = [
    "CausalModel",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "GenerativeModel",
    "MegaByte",
    "Model",
    "NGram",
    "Output",
    "VisionEncoder",
    "build",
    "build_on_meta",
]
