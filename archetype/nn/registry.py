"""Registry of the modules that compute parts. The role of a part determines how its module is constructed and called:

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
| token embedding    | `Module(spec, vocab_size, context_length, d_model)` | `(tokens, context, types) -> vectors` |
| head               | `Module(spec, vocab_size, features)`        | `(x, table) -> logits`, or `(x) -> logits` |
| model              | `Module(spec)`                              | `(tokens, ...) -> output`     |

The module of a mixer or feed-forward part with a state has `new_state(batch, capacity, dtype, device)`, which returns
a `LayerState`; `forward` reads the state and updates it. Without a state, `forward` reads whole sequences.
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
    """Register the decorated module class for these kinds of parts."""
    return provides("module", *parts)


def module_class(part: Spec) -> type[nn.Module]:
    """Return the module class registered for a part.

    Raises:
        SpecError: no module is registered for its kind.
    """
    if (module := provided("module", type(part))) is not None:
        return cast(type[nn.Module], module)
    cause = f"no module is registered for {type(part).__name__}"
    raise SpecError(getattr(part, "kind", ""), cause, "register a module: archetype.register(SPEC, module=MODULE)")


def build_mixer(mixer: Mixer, place: Place) -> nn.Module:
    return module_class(mixer)(mixer, place)


def build_feedforward(feedforward: FeedForward, place: Place) -> nn.Module | None:
    return None if feedforward.is_absent else module_class(feedforward)(feedforward, place)


def build_norm(norm: Norm, features: int) -> nn.Module:
    return module_class(norm)(norm, features)


def build_position(position: EmbeddingPosition, context_length: int, d_model: int) -> nn.Module:
    return module_class(position)(position, context_length, d_model)


def build_embedding(
    embedding: TokenEmbedding, vocab_size: int, context_length: int, d_model: int, readers: Sequence[int] = ()
) -> nn.Module:
    """Build the token embedding. `readers` are the layers that read per-layer vectors."""
    further = (readers,) if embedding.layer_features else ()
    return module_class(embedding)(embedding, vocab_size, context_length, d_model, *further)


def build_head(head: Head, vocab_size: int, features: int) -> nn.Module | None:
    return None if head.is_absent else module_class(head)(head, vocab_size, features)
