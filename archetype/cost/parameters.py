"""Parameters of every module of a model, under the names that the built model gives them."""

from typing import assert_never

from archetype import spec

Counts = dict[str, int]


def of_model(model: spec.ModelSpec) -> Counts:
    """Parameters by module: `embedding.token`, `blocks.0.mixer.q`, ..., `lm_head`."""
    d = model.d_model
    counts = {f"embedding.{name}": count for name, count in embedding(model).items()}
    for index, layer in enumerate(model.layers):
        counts |= {f"blocks.{index}.{name}": count for name, count in block(layer, d).items()}
    counts["final_norm"] = norm(model.final_norm, d)
    counts["lm_head"] = head(model)
    return counts


def embedding(model: spec.ModelSpec) -> Counts:
    """Parameters of what turns tokens into vectors, by module."""
    d = model.d_model
    return {
        "token": model.vocab_size * d,
        "position": _position(model.embedding.position, model.context_length, d),
        "norm": norm(model.embedding.norm, d),
    }


def head(model: spec.ModelSpec) -> int:
    """Parameters of the head; a tied one has no table of its own."""
    return (0 if model.head.tied else model.vocab_size * model.d_model) + (model.vocab_size if model.head.bias else 0)


def block(layer: spec.Block, d: int) -> Counts:
    """Parameters of one layer, by module."""
    shared = isinstance(layer.wiring, spec.ParallelResidual) and layer.wiring.shared_norm
    one_norm = norm(layer.wiring.norm, d)
    return (
        {"mixer_norm": one_norm}
        | {f"mixer.{name}": count for name, count in mixer(layer.mixer, d).items()}
        | {"feedforward_norm": 0 if shared else one_norm}
        | {f"feedforward.{name}": count for name, count in feedforward(layer.feedforward, d).items()}
    )


def mixer(part: spec.Mixer, d: int) -> Counts:
    """Parameters of a mixer, by projection."""
    match part:
        case spec.Attention():
            sizes = part.sizes(d)
            queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
            return {
                "q": linear(d, queries, part.bias.q),
                "k": linear(d, keys, part.bias.k),
                "v": linear(d, keys, part.bias.v),
                "o": linear(queries, d, part.bias.o),
            }
        case _:
            assert_never(part)


def feedforward(part: spec.FeedForward, d: int) -> Counts:
    """Parameters of a feed-forward part, by projection."""
    width = part.width(d)
    up, down = linear(d, width, part.bias), linear(width, d, part.bias)
    match part:
        case spec.MLP():
            return {"up": up, "down": down}
        case spec.GatedMLP():
            return {"gate": up, "up": up, "down": down}
        case _:
            assert_never(part)


def norm(part: spec.Norm, d: int) -> int:
    """Parameters of a norm."""
    match part:
        case spec.LayerNorm():
            return 2 * d if part.bias else d
        case spec.RMSNorm():
            return d
        case spec.NoNorm():
            return 0
        case _:
            assert_never(part)


def linear(inputs: int, outputs: int, bias: bool) -> int:
    """Parameters of a projection."""
    return inputs * outputs + (outputs if bias else 0)


def _position(part: spec.EmbeddingPosition, context_length: int, d: int) -> int:
    match part:
        case spec.Learned():
            return context_length * d
        case spec.Sinusoidal() | spec.NoPosition():
            return 0
        case _:
            assert_never(part)
