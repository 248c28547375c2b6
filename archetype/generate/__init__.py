"""From a model to text: settings, sampling, the engine, beam search, and what encoders answer."""

from archetype.generate.beam import Beam, beam_search
from archetype.generate.classify import classify_pictures, classify_texts
from archetype.generate.embed import Pooling, embed
from archetype.generate.engine import Engine, generate, prefill, stream, stream_ids
from archetype.generate.fill import Prediction, fill
from archetype.generate.sample import Sampler
from archetype.generate.settings import Sampling, generation_config, read_generation_config
from archetype.generate.translate import translate

__all__ = [
    "Beam",
    "Engine",
    "Pooling",
    "Prediction",
    "Sampler",
    "Sampling",
    "beam_search",
    "classify_pictures",
    "classify_texts",
    "embed",
    "fill",
    "generate",
    "generation_config",
    "prefill",
    "read_generation_config",
    "stream",
    "stream_ids",
    "translate",
]
