"""Diagrams of encoder-decoders."""

from archetype.models.encoder_decoder.cost import EncoderDecoderCost
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.parts.embedding.diagram import embedding_steps
from archetype.parts.head.diagram import head_steps
from archetype.roles.drawing import Blocks, Link, Stream, Streams, Text, pill
from archetype.spec.registry import provides


@provides("diagram", EncoderDecoder)
def encoder_decoder(model: EncoderDecoder, cost: EncoderDecoderCost, text: Text) -> Streams:
    source_embedding = cost.source_embedding
    if source_embedding is None:
        source = embedding_steps(cost.embedding, text, length="T_s", shared=True)
    elif model.embedding.is_shared:
        table, *_ = embedding_steps(cost.embedding, text, length="T_s", shared=True)
        _, *rest = embedding_steps(source_embedding, text, "source_embedding", "T_s")
        source = (table, *rest)
    else:
        source = embedding_steps(source_embedding, text, "source_embedding", "T_s")
    crosses = cost.num_cross_attentions > 0
    result = pill("encoder.output", "encoder output", "(B, T_s, D)", "output", "encoder.final_norm.out")
    output = (result,) if crosses else ()
    left = (pill("source", "source tokens", "(B, T_s)"), *source, Blocks("encoder."), *output)
    target, head = embedding_steps(cost.embedding, text), head_steps(model.head, text(cost.d))
    right = (pill("target", "target tokens", "(B, T)"), *target, Blocks("decoder."), *head)
    links = [Link("cross", "encoder.output", "decoder.")] if crosses else []
    if model.embedding.is_shared:
        links.append(Link("tied", "embedding.token", "embedding.token.source"))
    if model.state_bridge is not None:
        links.append(Link("state", "encoder.", "decoder."))
    return Streams((Stream(left, {"T": "T_s", "S": "T_s"}), Stream(right)), tuple(links))
