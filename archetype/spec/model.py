"""Whole models: the root of a specification file."""

from typing import Any, Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from archetype.spec.base import Flag, Length, Positive, Probability, Size, Spec, WideSize, fault
from archetype.spec.initialization import GPT2Initialization, Initialization
from archetype.spec.layers import Layers
from archetype.spec.norm import NoNorm, Norm
from archetype.spec.position import EmbeddingPosition, NoPosition, Sinusoidal

SCHEMA_VERSION = 1


class Embedding(Spec):
    """Token vectors times `scale`, plus positions, then a norm and dropout."""

    position: EmbeddingPosition = NoPosition()
    scale: Positive = 1.0
    norm: Norm = NoNorm()
    dropout: Probability = 0.0


class LanguageModelHead(Spec):
    """Logits over the vocabulary; `tied` multiplies by the embedding's own table."""

    kind: Literal["language_model"] = "language_model"
    tied: Flag = False
    bias: Flag = False


class Decoder(Spec):
    """A stack in which no position sees a later one; it predicts the next token."""

    version: Literal[1] = 1
    kind: Literal["decoder"] = "decoder"
    name: str = ""
    vocab_size: WideSize
    context_length: Length
    d_model: Size
    embedding: Embedding = Embedding()
    layers: Layers
    final_norm: Norm = NoNorm()
    head: LanguageModelHead = LanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @model_validator(mode="before")
    @classmethod
    def _version_is_known(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("version", SCHEMA_VERSION) != SCHEMA_VERSION:
            cause = f"schema version {data['version']!r} is unknown here"
            fault("version", cause, f"this Archetype reads version {SCHEMA_VERSION}")
        return data

    @model_validator(mode="after")
    def _sizes_agree(self) -> "Decoder":
        if isinstance(self.embedding.position, Sinusoidal) and self.d_model % 2:
            fault("d_model", f"{self.d_model} features cannot be paired for sinusoidal positions", "use an even number")
        for index, block in enumerate(self.layers):
            try:
                block.mixer.fits(self.d_model)
            except PydanticCustomError as error:
                inner = error.context or {}
                fault(f"layers[{index}].mixer.{inner['place']}", str(inner["cause"]), str(inner["remedy"]))
        return self

    @property
    def follows_length(self) -> bool:
        """Whether positions are turned otherwise in a longer text, so that a text must be read whole."""
        return any(block.mixer.keys_follow_length for block in self.layers)

    @property
    def num_layers(self) -> int:
        """L"""
        return len(self.layers)


# The models that a file can describe. Later: Encoder, EncoderDecoder, NGram, MegaByte, VisionEncoder.
ModelSpec = Decoder
