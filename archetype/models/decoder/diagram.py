"""How a decoder is drawn."""

from collections.abc import Callable

from archetype.cost.formula import Formula
from archetype.models.decoder.cost import DecoderCost
from archetype.models.decoder.spec import Decoder
from archetype.parts.embedding.diagram import embedding_steps
from archetype.parts.head.diagram import head_steps
from archetype.roles.drawing import Blocks, Stream, Streams, pill, streams_of


@streams_of(Decoder)
def decoder(model: Decoder, cost: DecoderCost, text: Callable[[Formula], str]) -> Streams:
    """One stream, from tokens to logits."""
    embedding, head = embedding_steps(cost.embedding, text), head_steps(model.head, text(cost.d))
    return Streams((Stream((pill("tokens", "tokens", "(B, T)"), *embedding, Blocks(), *head)),))
