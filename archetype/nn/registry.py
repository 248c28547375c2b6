"""Which module computes a part. Each file of this folder registers its own; an extension adds others.

How a module is made, and called, follows from its role:

| role               | made as                                     | called as                     |
|--------------------|---------------------------------------------|-------------------------------|
| mixer              | `Module(spec, place)`                       | `(x, context, state) -> y`    |
| feed-forward       | `Module(spec, place)`                       | `(x, context, state) -> y`    |
| wiring             | `Module(block, place)`                      | `(x, context, state) -> y`    |
| residual wiring    | `Module(spec, place)`                       | a `ResidualStream`            |
| norm               | `Module(spec, features)`                    | `(x, context) -> y`           |
| embedding position | `Module(spec, context_length, d_model)`     | `(positions) -> vectors`      |
| mixer position     | `Module(spec, sizes)`                       | a `Rotation`, `ScoreBias` or `QueryBias` |
| key selection      | `Module(spec, place, query_features)`       | a `KeySelector`               |
| activation         | `Module(spec)`, or a function of the same   | `(x) -> y`                    |
| router             | `Module(spec, num_experts, place)`          | `(x, context) -> logits`      |
| residual wiring    | `Module(spec, place)`                       | a `ResidualStream`            |
| token embedding    | `Module(spec, vocab_size, context_length, d_model)` | `(tokens, context, types) -> vectors` |
| head               | `Module(spec, vocab_size, features)`        | `(x, table) -> logits`, or `(x) -> logits` |
| model              | `Module(spec)`                              | `(tokens, ...) -> output`     |

A content that carries something from token to token, a mixer or a feed-forward part, has
`new_state(batch, capacity, dtype, device)`, which gives a `LayerState`; its `forward` reads the state and leaves in it
what the next tokens need. Without a state it reads whole texts.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from torch import nn

from archetype.errors import SpecError
from archetype.nn.place import Place
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.feedforward import FeedForward
from archetype.roles.head import Head
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.position import EmbeddingPosition
from archetype.spec.base import Spec
from archetype.spec.registry import provided, provides

M = TypeVar("M", bound=type[nn.Module])


def module_for(*parts: type[Spec]) -> Callable[[M], M]:
    """Class decorator: this module computes these parts."""
    return provides("module", *parts)


def module_class(part: Spec) -> type[nn.Module]:
    """The module that computes a part.

    Raises:
        SpecError: none is registered.
    """
    if (module := provided("module", type(part))) is not None:
        return cast(type[nn.Module], module)
    cause = f"no module computes a {type(part).__name__}"
    raise SpecError(getattr(part, "kind", ""), cause, "register one: archetype.register(SPEC, module=MODULE)")


def build_mixer(mixer: Mixer, place: Place) -> nn.Module:
    """The module of a mixer."""
    return module_class(mixer)(mixer, place)


def build_feedforward(feedforward: FeedForward, place: Place) -> nn.Module | None:
    """The module of a feed-forward part; None for a block of its mixer alone."""
    return None if feedforward.is_absent else module_class(feedforward)(feedforward, place)


def build_norm(norm: Norm, features: int) -> nn.Module:
    """The module of a norm over `features`."""
    return module_class(norm)(norm, features)


def build_position(position: EmbeddingPosition, context_length: int, d_model: int) -> nn.Module:
    """The module of positions that are added to embeddings."""
    return module_class(position)(position, context_length, d_model)


def build_embedding(
    embedding: TokenEmbedding, vocab_size: int, context_length: int, d_model: int, readers: Sequence[int] = ()
) -> nn.Module:
    """The module that makes vectors of tokens, and of `readers`, where it gives layers vectors of their own."""
    further = (readers,) if embedding.layer_features else ()
    return module_class(embedding)(embedding, vocab_size, context_length, d_model, *further)


def build_head(head: Head, vocab_size: int, features: int) -> nn.Module | None:
    """The module of a head; None for a model that ends in its vectors."""
    return None if head.is_absent else module_class(head)(head, vocab_size, features)
