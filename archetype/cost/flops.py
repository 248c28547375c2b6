"""Floating-point operations of every module: two for each multiply-add of a matrix product.

What is not a matrix product (norms, activations, softmax, rotations, look-ups) is left out, as is the convention of the
field. Attention is counted in full: every query with every key, masked or not.
"""

from typing import assert_never

from archetype import spec

Counts = dict[str, int]


def of_model(model: spec.ModelSpec, batch: int, queries: int, keys: int) -> Counts:
    """Forward FLOPs by module of a pass over `queries` new tokens a row that look at `keys` positions.

    Forward over a text: queries = keys = its length. One decoding step: queries = 1, keys = the length so far,
    the new token included.
    """
    counts: Counts = {}
    for index, layer in enumerate(model.layers):
        products = block(layer, model.d_model, batch, queries, keys)
        counts |= {f"blocks.{index}.{name}": n for name, n in products.items()}
    counts["lm_head"] = head(model, batch * queries)
    return counts


def block(layer: spec.Block, d: int, batch: int, queries: int, keys: int) -> Counts:
    """FLOPs of one layer, by product."""
    mixed = mixer(layer.mixer, d, batch, queries, keys)
    fed = feedforward(layer.feedforward, d, batch * queries)
    return {f"mixer.{name}": n for name, n in mixed.items()} | {f"feedforward.{name}": n for name, n in fed.items()}


def head(model: spec.ModelSpec, tokens: int) -> int:
    """FLOPs of the logits of `tokens` positions."""
    return 2 * tokens * model.d_model * model.vocab_size


def mixer(part: spec.Mixer, d: int, batch: int, queries: int, keys: int) -> Counts:
    """FLOPs of a mixer, by product."""
    match part:
        case spec.Attention():
            sizes = part.sizes(d)
            tokens = batch * queries
            wide, narrow = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
            pairs = batch * sizes.num_heads * queries * keys
            return {
                "q": 2 * tokens * d * wide,
                "k": 2 * tokens * d * narrow,
                "v": 2 * tokens * d * narrow,
                "scores": 2 * pairs * sizes.head_dim,
                "mixture": 2 * pairs * sizes.head_dim,
                "o": 2 * tokens * wide * d,
            }
        case _:
            assert_never(part)


def feedforward(part: spec.FeedForward, d: int, tokens: int) -> Counts:
    """FLOPs of a feed-forward part, by projection."""
    one = 2 * tokens * d * part.width(d)
    match part:
        case spec.MLP():
            return {"up": one, "down": one}
        case spec.GatedMLP():
            return {"gate": one, "up": one, "down": one}
        case _:
            assert_never(part)


def training(forward: int) -> int:
    """A training step: forward, and backward twice that (the gradients of input and weight of every product)."""
    return 3 * forward
