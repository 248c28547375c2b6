"""How tokens and patches become vectors."""

from typing import Annotated

from pydantic import Field

from archetype.spec.base import MAX_SIZE, Flag, Positive, Probability, Spec
from archetype.spec.norm import NoNorm, Norm
from archetype.spec.position import EmbeddingPosition, NoPosition


class Embedding(Spec):
    """Token vectors times `scale`, plus positions, then a norm and dropout."""

    position: EmbeddingPosition = NoPosition()
    scale: Positive = 1.0
    norm: Norm = NoNorm()
    dropout: Probability = 0.0


class EncoderEmbedding(Embedding):
    """As any, plus one of `token_types` vectors that say which part of the input a token belongs to (Devlin 2018)."""

    token_types: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0


class PairEmbedding(Embedding):
    """Of an encoder and a decoder: one table for both where `shared`, else one each."""

    shared: Flag = True
