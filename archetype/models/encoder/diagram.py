"""Diagrams of encoders."""

from archetype.models.encoder.cost import EncoderCost
from archetype.models.encoder.spec import Encoder
from archetype.parts.embedding.diagram import embedding_steps, per_layer_streams
from archetype.parts.head.diagram import head_steps
from archetype.roles.drawing import Blocks, Step, Stream, Streams, Text, pill
from archetype.spec.registry import provides

POOLER = Step("pooler", "pooler", "D → D", "head", "pooler")


@provides("diagram", Encoder)
def encoder(model: Encoder, cost: EncoderCost, text: Text) -> Streams:
    embedding, head = embedding_steps(cost.embedding, text), head_steps(model.head, text(cost.d))
    pooler = (POOLER,) if model.pooler else ()
    stream = Stream((pill("tokens", "tokens", "(B, T)"), *embedding, Blocks(), *pooler, *head))
    return Streams((stream, *per_layer_streams(cost.embedding, text)))
