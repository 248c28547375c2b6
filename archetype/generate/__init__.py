"""From a model to text: settings, sampling, the driver, and streaming."""

from archetype.generate.decode import Decoding, prefill
from archetype.generate.sample import Sampler
from archetype.generate.settings import Sampling, generation_config, read_generation_config
from archetype.generate.text import generate, stream

__all__ = [
    "Decoding",
    "Sampler",
    "Sampling",
    "generate",
    "generation_config",
    "prefill",
    "read_generation_config",
    "stream",
]
