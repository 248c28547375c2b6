"""Which module computes a part. Each file of this folder registers its own; an extension adds others.

How a module is made, and called, follows from its role:

| role               | made as                                     | called as                    |
|--------------------|---------------------------------------------|------------------------------|
| mixer              | `Module(spec, d_model, causal, layer)`      | `(x, context, cache) -> y`   |
| feed-forward       | `Module(spec, d_model)`                     | `(x, context) -> y`          |
| norm               | `Module(spec, features)`                    | `(x, context) -> y`          |
| embedding position | `Module(spec, context_length, d_model)`     | `(positions) -> vectors`     |
| mixer position     | `Module(spec, sizes)`                       | a `Rotation` or a `ScoreBias` |
| wiring             | `Module(block, d_model, causal, layer)`     | `(x, context, cache) -> y`   |

A mixer that decodes has `new_state(batch, capacity, dtype, device)`, which gives a `LayerState`; its `forward` reads
the state and leaves in it what the next tokens need.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from archetype import spec
from archetype.errors import SpecError

M = TypeVar("M", bound=type[nn.Module])
MODULES: dict[type[spec.Part], type[nn.Module]] = {}


def module_for(*parts: type[spec.Part]) -> Callable[[M], M]:
    """Class decorator: this module computes these parts."""

    def register(module: M) -> M:
        MODULES.update(dict.fromkeys(parts, module))
        return module

    return register


def module_class(part: spec.Part) -> type[nn.Module]:
    """The module that computes a part.

    Raises:
        SpecError: none is registered.
    """
    for cls in type(part).__mro__:
        if cls in MODULES:
            return MODULES[cls]
    cause = f"no module computes a {type(part).__name__}"
    raise SpecError(getattr(part, "kind", ""), cause, "register one: archetype.register(SPEC, module=MODULE)")


def build_mixer(mixer: spec.Mixer, d_model: int, causal: bool, layer: int) -> nn.Module:
    """The module of a mixer, at index `layer` of its stack."""
    return module_class(mixer)(mixer, d_model, causal, layer)


def build_feedforward(feedforward: spec.FeedForward, d_model: int) -> nn.Module | None:
    """The module of a feed-forward part; None for a block of its mixer alone."""
    return None if isinstance(feedforward, spec.NoFeedForward) else module_class(feedforward)(feedforward, d_model)


def build_norm(norm: spec.Norm, features: int) -> nn.Module:
    """The module of a norm over `features`."""
    return module_class(norm)(norm, features)


def build_position(position: spec.EmbeddingPosition, context_length: int, d_model: int) -> nn.Module:
    """The module of positions that are added to embeddings."""
    return module_class(position)(position, context_length, d_model)


def build_block(block: spec.Block, d_model: int, causal: bool, layer: int) -> nn.Module:
    """The module of one layer, at index `layer` of its stack."""
    return module_class(block.wiring)(block, d_model, causal, layer)
