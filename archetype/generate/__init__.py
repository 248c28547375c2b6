"""From a model to text: settings, sampling, the engine, beam search, and what encoders answer."""

from archetype.generate.beam import Beam, beam_search, translate
from archetype.generate.encoder import Pooling, Prediction, classify_pictures, classify_texts, embed, fill
from archetype.generate.engine import Engine, Stats
from archetype.generate.request import Event, Logprobs, Request
from archetype.generate.sample import Sampler, sample
from archetype.generate.score import Score, score
from archetype.generate.settings import Sampling, generation_config, read_generation_config
from archetype.generate.step import DecodeStep, prefill

__all__ = [
    "Beam", "DecodeStep", "Engine", "Event", "Logprobs", "Pooling", "Prediction", "Request", "Sampler", "Sampling",
    "Score", "Stats", "beam_search", "classify_pictures", "classify_texts", "embed", "fill", "generation_config",
    "prefill", "read_generation_config", "sample", "score", "translate",
]  # fmt: skip
