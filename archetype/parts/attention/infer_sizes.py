"""Inference of the numbers and widths of attention's heads from the shapes of its tensors."""

from math import gcd

from archetype.roles.checkpoint import CheckpointMixer

HEADS = (
    "num_attention_heads_per_layer",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "decoder_attention_heads",
    "attention_heads",
)
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
USUAL_HEAD_DIM = 64  # assumed if nothing tells the number of heads


def head_sizes(tensors: CheckpointMixer, has_keys: bool) -> tuple[int, int, int]:
    """Return the numbers of heads and of key heads, and the width of a head.

    If a key gives the width, shapes give this layer's number of heads, which may vary between layers.
    """
    output_side = 1 if tensors.transposed else 0
    if "q.weight" in tensors.shapes:
        width = tensors.sides("q.weight")[output_side] // (2 if gate_in_queries(tensors) else 1)  # H P
    else:
        width = tensors.sides("o.weight")[1 - output_side]  # of fused q, k and v only the output matrix gives H P
    head_dim = tensors.size(HEAD_DIM)
    of_values = None if head_dim is None else _fused_value_width(tensors, head_dim)
    if head_dim is not None and of_values is not None:
        width = _rows_of_each(tensors, width, of_values) * head_dim
    if head_dim is None:
        heads = num_heads(tensors)
        head_dim = _rows_of_each(tensors, width, heads)
    else:
        heads, stated = _rows_of_each(tensors, width, head_dim), tensors.size(HEADS)
        if stated not in (None, heads):
            raise tensors.missing(f"attention with {heads} heads of {head_dim} features and keys for {stated} heads")
    if "gqkv.weight" in tensors.shapes:  # HRM: of gates, queries, keys and values, H P rows each
        num_kv_heads, odd = heads, tensors.sides("gqkv.weight")[output_side] - 4 * heads * head_dim
    elif "qkv.weight" in tensors.shapes:
        # the fused matrix has H P + K (P + V) rows
        rows = tensors.sides("qkv.weight")[output_side] - heads * head_dim
        num_kv_heads, odd = divmod(rows, head_dim + (of_values or head_dim))
    elif has_keys:
        num_kv_heads, odd = _rows_of_each(tensors, tensors.sides("k.weight")[output_side], head_dim), 0
    else:
        num_kv_heads, odd = tensors.size(("num_key_value_heads",)) or heads, 0
    if num_kv_heads < 1 or odd or heads % num_kv_heads:
        raise tensors.missing(f"attention whose tensor shapes do not fit {heads} heads")
    return heads, num_kv_heads, head_dim


def value_width(tensors: CheckpointMixer, num_kv_heads: int, head_dim: int) -> int | None:
    """Return the width of values, or None for that of keys. Another one must be stated by a key, as in MiMo-V2."""
    if "v.weight" not in tensors.shapes:
        return _fused_value_width(tensors, head_dim)
    width = _rows_of_each(tensors, tensors.sides("v.weight")[1 if tensors.transposed else 0], num_kv_heads)
    if width != head_dim and tensors.size(("v_head_dim",)) != width:
        raise tensors.missing(f"values of undeclared width {width} for keys of width {head_dim}")
    return None if width == head_dim else width


def gate_in_queries(tensors: CheckpointMixer) -> bool:
    """Return whether the query matrix includes a gate. It then has twice as many rows as the output has inputs."""
    if "gate.weight" in tensors.shapes or "q.weight" not in tensors.shapes:
        return False
    (rows, columns), (outputs, inputs) = tensors.sides("q.weight"), tensors.sides("o.weight")
    doubled = columns == 2 * outputs if tensors.transposed else rows == 2 * inputs
    return tensors.quirks.gate_in_queries or doubled


def num_heads(tensors: CheckpointMixer) -> int:
    """Return the number of heads from config.json; if absent, assume the usual head size or the largest that fits."""
    if (count := tensors.size(HEADS)) is not None:
        return count
    output_side = 1 if tensors.transposed else 0
    widths = [tensors.sides(name)[output_side] for name in ("q.weight", "k.weight") if name in tensors.shapes]
    # the width of a head divides those of queries and keys
    q_width, common = (widths[0], gcd(*widths)) if widths else (tensors.d_model, tensors.d_model)
    head_dim = tensors.size(HEAD_DIM) or next(n for n in range(min(USUAL_HEAD_DIM, common), 0, -1) if common % n == 0)
    count = max(q_width // head_dim, 1)
    tensors.assume("num_heads", count, f"no key names it, and heads often have {USUAL_HEAD_DIM} features")
    return count


def _fused_value_width(tensors: CheckpointMixer, head_dim: int) -> int | None:
    width = tensors.size(("v_head_dim",)) if "qkv.weight" in tensors.shapes else None
    return None if width == head_dim else width


def _rows_of_each(tensors: CheckpointMixer, width: int, parts: int) -> int:
    if width < 1 or width % parts:
        raise tensors.missing(f"an attention tensor whose {width} rows {parts} does not divide")
    return width // parts
