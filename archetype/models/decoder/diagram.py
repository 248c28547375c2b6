"""Diagrams of decoders."""

from archetype.models.decoder.cost import DecoderCost
from archetype.models.decoder.spec import Decoder
from archetype.models.further_tokens.diagram import further_stream
from archetype.parts.embedding.diagram import embedding_steps, per_layer_streams
from archetype.parts.head.diagram import head_steps
from archetype.roles.drawing import Blocks, Stream, Streams, Text, pill
from archetype.spec.registry import provides


@provides("diagram", Decoder)
def decoder(model: Decoder, cost: DecoderCost, text: Text) -> Streams:
    """Draw the streams of tokens to logits, of multi-token prediction and of per-layer embeddings."""
    embedding, head = embedding_steps(cost.embedding, text), head_steps(model.head, text(cost.d))
    streams = [Stream((pill("tokens", "tokens", "(B, T)"), *embedding, Blocks(), *head))]
    if model.further_tokens is not None and cost.further_tokens is not None:
        streams.append(further_stream(model.further_tokens, cost.further_tokens, text))
    return Streams((*streams, *per_layer_streams(cost.embedding, text)))
