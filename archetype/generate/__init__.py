"""Text generation (sampling, engine, beam search) and encoder outputs."""

from archetype.generate.beam import Translation, beam_search, translate, translations
from archetype.generate.encoder import (
    Pooling,
    Prediction,
    classify_pictures,
    classify_texts,
    embed,
    embedding_tokens,
    fill,
)
from archetype.generate.engine import Engine
from archetype.generate.generation_config import generation_config, read_generation_config
from archetype.generate.reader import make_deterministic
from archetype.generate.request import Event, Logprobs, Request
from archetype.generate.sample import Sampler, sample
from archetype.generate.spans import MAX_TOKENS, Answer, answer
from archetype.generate.state_dtype import use_state_dtype
from archetype.generate.stats import Stats
from archetype.generate.step import DecodeStep, prefill
from archetype.generate.token_classes import TokenClass, classify_tokens
from archetype.generate.unmask import unmask
from archetype.settings.generation import Beam, Sampling, Unmasking

__all__ = [
    "MAX_TOKENS", "Answer", "Beam", "DecodeStep", "Engine", "Event", "Logprobs", "Pooling", "Prediction", "Request",
    "Sampler", "Sampling", "Stats", "TokenClass", "Translation", "Unmasking", "answer", "beam_search",
    "classify_pictures", "classify_texts", "classify_tokens", "embed", "embedding_tokens", "fill", "generation_config",
    "make_deterministic", "prefill", "read_generation_config", "sample", "translate", "translations",
    "unmask", "use_state_dtype",
]  # fmt: skip
