"""The block that most families share: attention and a plain feed-forward part."""

from archetype import spec
from archetype.spec.attention import ProjectionBiases

ALL_BIASES = ProjectionBiases(q=True, k=True, v=True, o=True)


def standard_block(
    *,
    wiring: spec.Wiring,
    num_heads: int,
    d_ff: int,
    activation: spec.Activation,
    bias: bool = True,
    scale: float | None = None,
    position: spec.MixerPosition = spec.NoPosition(),
    pattern: spec.Pattern = spec.Full(),
    attention_dropout: float = 0.0,
    dropout: float = 0.0,
) -> spec.Block:
    """Multi-head attention and an MLP (Vaswani 2017); `bias` gives one to every projection or to none."""
    mixer = spec.Attention(
        num_heads=num_heads,
        bias=ALL_BIASES if bias else ProjectionBiases(),
        scale=scale,
        position=position,
        pattern=pattern,
        dropout=attention_dropout,
    )
    feedforward = spec.MLP(d_ff=d_ff, activation=activation, bias=bias)
    return spec.Block(wiring=wiring, mixer=mixer, feedforward=feedforward, dropout=dropout)
