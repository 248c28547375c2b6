"""Blocks and decoders shared by many families: attention and an MLP."""

from collections.abc import Callable
from typing import Any

from archetype.families.keys import expect_kind
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.parts.attention.spec import Attention, ProjectionBiases
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.pattern.spec import Full
from archetype.roles.activation import Activation
from archetype.roles.norm import Norm
from archetype.roles.pattern import Pattern
from archetype.roles.wiring import Wiring
from archetype.spec.repeats import cycle

ALL_BIASES = ProjectionBiases(q=True, k=True, v=True, o=True)


def standard_block(
    *,
    wiring: Wiring,
    num_heads: int,
    d_ff: int,
    activation: Activation | str,
    bias: bool = True,
    qkv_bias: bool | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    **mixer: Any,
) -> Block:
    """Build a block of multi-head attention and an MLP (Vaswani 2017).

    Args:
        d_ff: inner width of the MLP.
        bias: whether all projections have a bias.
        qkv_bias: whether the projections to queries, keys and values have a bias (default: `bias`).
        dropout: dropout rate of the outputs of both parts.
        mixer: additional fields of `spec.Attention`.
    """
    qkv = bias if qkv_bias is None else qkv_bias
    biases = ProjectionBiases(q=qkv, k=qkv, v=qkv, o=bias)
    attention = Attention(num_heads=num_heads, bias=biases, dropout=attention_dropout, **mixer)
    feedforward = MLP(d_ff=d_ff, activation=activation, bias=bias)
    return Block(wiring=wiring, mixer=attention, feedforward=feedforward, dropout=dropout)


def decoder(
    blocks: tuple[Block, ...],
    *,
    num_layers: int | None = None,
    norm: Norm,
    tied: bool = False,
    std: float = 0.02,
    softcap: float | None = None,
    **model: Any,
) -> Decoder:
    """Build a decoder that cycles through `blocks` (default: once), with a final norm.

    `model` has other fields of `spec.Decoder`.
    """
    defaults = {"initialization": NormalInitialization(std=std)}
    head = LanguageModelHead(tied=tied, softcap=softcap)
    layers = blocks if num_layers is None else cycle(num_layers, *blocks)
    return Decoder(layers=layers, final_norm=norm, head=head, **(defaults | model))


def changed(model: Any, **changes: Callable[[Any], Any]) -> Any:
    """Return the model with fields of each layer changed by functions, such as `mixer=lambda mixer: ...`."""
    return model.replace(layers=tuple(
        block.replace(**{name: change(getattr(block, name)) for name, change in changes.items()})
        for block in model.layers
    ))


def first_attention(model: Any) -> Attention:
    """Return the attention of the first layer that has it."""
    mixers = [block.mixer for block in model.layers]
    mixer = next((mixer for mixer in mixers if isinstance(mixer, Attention)), mixers[0])
    return expect_kind(Attention, mixer, "layers[0].mixer")


def with_experts(dense: Decoder, **experts: Any) -> Any:
    """Replace feed-forward parts with a `MixtureOfExperts` built from them. `experts` has its other fields."""
    return changed(dense, feedforward=lambda part: MixtureOfExperts(expert=part, **experts))


def standard_decoder(
    *,
    norm: LayerNorm,
    d_model: int,
    num_layers: int,
    d_ff: int | None = None,
    patterns: tuple[Pattern, ...] = (Full(),),
    wiring: Wiring | None = None,
    tied: bool = True,
    std: float = 0.02,
    model: dict[str, Any] | None = None,
    name: str = "",
    vocab_size: int,
    context_length: int,
    **block: Any,
) -> Decoder:
    """Build a decoder of standard blocks.

    Args:
        norm: norm of every part and after the last layer.
        d_ff: inner width (default: 4 * d_model).
        patterns: attention patterns, cycled over the layers.
        wiring: wiring of each block (default: pre-norm).
        model: additional fields of `spec.Decoder`.
        block: additional arguments of `standard_block`.
    """
    wiring, width = wiring or PreNorm(norm=norm), d_ff or 4 * d_model
    blocks = tuple(standard_block(wiring=wiring, d_ff=width, pattern=pattern, **block) for pattern in patterns)
    sizes: dict[str, Any] = dict(name=name, vocab_size=vocab_size, context_length=context_length, d_model=d_model)
    return decoder(blocks, num_layers=num_layers, norm=norm, tied=tied, std=std, **sizes, **(model or {}))
