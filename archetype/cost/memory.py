"""Bytes: of weights, of the state that decoding keeps, and of what training holds beside them."""

from typing import assert_never

from archetype import spec
from archetype.errors import SpecError

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def bytes_of(dtype: str) -> int:
    """Bytes of one number."""
    if dtype not in BYTES:
        raise SpecError("dtype", f"{dtype!r} is not known", f"use one of {', '.join(BYTES)}")
    return BYTES[dtype]


def state_bytes(model: spec.ModelSpec, batch: int, length: int, dtype: str) -> int:
    """Bytes of the state of `batch` rows with room for `length` tokens each."""
    return sum(state_numbers(layer.mixer, model.d_model, length) for layer in model.layers) * batch * bytes_of(dtype)


def state_numbers(part: spec.Mixer, d: int, length: int) -> int:
    """Numbers that one layer keeps for one row of `length` tokens."""
    match part:
        case spec.Attention():
            sizes = part.sizes(d)
            return 2 * length * sizes.num_kv_heads * sizes.head_dim
        case _:
            assert_never(part)


def training_bytes(parameters: int) -> dict[str, int]:
    """What a training step holds for its parameters: all in float32, with AdamW's two moments.

    Activations come on top; they depend on the batch.
    """
    return {"weights": 4 * parameters, "gradients": 4 * parameters, "optimizer": 8 * parameters}
