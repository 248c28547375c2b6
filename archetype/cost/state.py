"""Bytes that decoding keeps between one token and the next."""

from typing import assert_never

from archetype import spec
from archetype.cost.dtypes import bytes_of
from archetype.cost.layers import alike

INTEGER = 8  # bytes of a token, or of a length


def state_bytes(model: spec.ModelSpec, batch: int, length: int, dtype: str) -> int:
    """Bytes of the state of `batch` rows with room for `length` tokens each; of a source too, where there is one."""
    return batch * (state_numbers(model, length) * bytes_of(dtype) + remembered_integers(model) * INTEGER)


def bytes_per_token(model: spec.ModelSpec, length: int, dtype: str) -> int:
    """Bytes by which the state of one row grows with each further token; of patches, on average."""
    together = model.patch_size if isinstance(model, spec.MegaByte) else 1
    growth = state_bytes(model, 1, length + together, dtype) - state_bytes(model, 1, length, dtype)
    return -(-growth // together)


def state_numbers(model: spec.ModelSpec, length: int) -> int:
    """Numbers that all layers keep for one row of `length` tokens."""
    match model:
        case spec.Decoder():
            return _stack(model.stacks[0], length)
        case spec.EncoderDecoder():
            _, decoder = model.stacks
            return _stack(decoder, length, source=length)
        case spec.MegaByte():
            wide, _ = model.stacks
            # the start and every complete patch, and what was made of the newest
            return _stack(wide, length // model.patch_size + 1) + wide.d_model
        case spec.Encoder() | spec.VisionEncoder() | spec.NGram():
            return 0
        case _:
            assert_never(model)


def remembered_integers(model: spec.ModelSpec) -> int:
    """Of one row, the tokens that are read again with the next one, and each cross-attention's length of its source."""
    match model:
        case spec.NGram():
            return model.n - 1
        case spec.MegaByte():
            return model.patch_size
        case spec.EncoderDecoder():
            return sum(block.cross_attention is not None for block in model.decoder.layers)
        case spec.Decoder() | spec.Encoder() | spec.VisionEncoder():
            return 0
        case _:
            assert_never(model)


def mixer_numbers(part: spec.Mixer, d: int, length: int) -> int:
    """Numbers that one mixer keeps for one row of `length` tokens."""
    match part:
        case spec.Attention():
            return keys_and_values(part, d, part.pattern.cache_length(length))
        case spec.LatentAttention():
            return length * (part.kv_lora_rank + part.qk_rope_head_dim)
        case spec.RNN() | spec.GRU():
            return d
        case spec.LSTM():
            return 2 * d  # what it says and what it keeps to itself
        case spec.Mamba():
            return part.expand * d * (part.state_size + part.conv_kernel - 1)
        case _:
            assert_never(part)


def keys_and_values(part: spec.Attention, d: int, positions: int) -> int:
    """Numbers in the keys and values of some positions."""
    sizes = part.sizes(d)
    return 2 * positions * sizes.num_kv_heads * sizes.head_dim


def _stack(stack: spec.StackView, length: int, source: int = 0) -> int:
    numbers = 0
    for group in alike(stack.layers):
        block = group.block
        crossed = keys_and_values(block.cross_attention, stack.d_model, source) if block.cross_attention else 0
        numbers += len(group.places) * (mixer_numbers(block.mixer, stack.d_model, length) + crossed)
    return numbers
