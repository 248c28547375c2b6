"""The sizes of every part as symbols, from which parameters and FLOPs are made."""

from typing import assert_never

from archetype import spec
from archetype.cost.formula import Formula, multiple, symbol

_WIDTHS = {"global_model.": "d_g", "local_model.": "d_l"}


def width(stack: spec.StackView) -> Formula:
    """d_model of a stack, under the symbol that tells it from other stacks of other widths."""
    return symbol(_WIDTHS.get(stack.prefix, "d"), stack.d_model)


def byte_width(model: spec.MegaByte) -> Formula:
    """Features that one byte has in the global model."""
    wide, _ = model.stacks
    return width(wide).over(symbol("p", model.patch_size))


def patch_numbers(model: spec.VisionEncoder) -> Formula:
    """Numbers of one patch of a picture."""
    return symbol("x", model.num_channels * model.patch_size**2)


def hidden_widths(model: spec.NGram) -> list[Formula]:
    """Features that each layer of an n-gram model reads, and at the end those that the head reads."""
    d = symbol("d", model.d_model)
    return [symbol("g", model.n) * d, *(multiple("w", features, d) for features in model.hidden)]


def head_sizes(part: spec.Attention, d: Formula) -> tuple[Formula, Formula, Formula]:
    """Query heads, and the features of all query heads and of all key heads together."""
    sizes = part.sizes(d.value)
    heads, features = symbol("h", sizes.num_heads), symbol("P", sizes.head_dim)
    wide = d if sizes.num_heads * sizes.head_dim == d.value else heads * features
    narrow = wide if sizes.num_kv_heads == sizes.num_heads else symbol("K", sizes.num_kv_heads) * features
    return heads, wide, narrow


def latent_sizes(part: spec.LatentAttention) -> tuple[Formula, Formula, Formula, Formula, Formula]:
    """Heads, and of one head the features that are not turned, turned, and of its value; and those of the latent."""
    return (
        symbol("h", part.num_heads),
        symbol("P", part.qk_nope_head_dim),
        symbol("R", part.qk_rope_head_dim),
        symbol("v", part.v_head_dim),
        symbol("C", part.kv_lora_rank),
    )


def mamba_sizes(part: spec.Mamba, d: Formula) -> tuple[Formula, Formula, Formula]:
    """Channels, numbers of state for each, and the rank of delta."""
    return part.expand * d, symbol("Z", part.state_size), symbol("r", part.rank(d.value))


def hidden_features(part: spec.RNN | spec.LSTM | spec.GRU, d: Formula) -> tuple[Formula, int]:
    """Features of one direction, and the number of directions."""
    return (symbol("d_h", d.value // 2), 2) if part.bidirectional else (d, 1)


def gates(part: spec.RNN | spec.LSTM | spec.GRU) -> int:
    """How many vectors a step computes."""
    match part:
        case spec.RNN():
            return 1
        case spec.GRU():
            return 3
        case spec.LSTM():
            return 4
        case _:
            assert_never(part)


def inner_width(part: spec.Expert, d: Formula) -> Formula:
    """F."""
    return multiple("d_ff", part.width(d.value), d)


def chosen(part: spec.MixtureOfExperts) -> Formula:
    """Experts that one token is sent to."""
    return symbol("k", part.experts_per_token)
