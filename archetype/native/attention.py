"""Attention over a cache, and writes to the cache, as native operations."""

import torch
from torch import Tensor

from archetype.native.arguments import CACHED, FLOATS, TYPES
from archetype.native.kernels import Kernels, without_context
from archetype.native.library import library
from archetype.native.operations import Append, AppendScaled, Attend, CopyPlaces, JoinParts
from archetype.native.products import too_many
from archetype.native.translations import SERIAL

# Positions that one thread sums; the results of such parts are joined in one order, whatever the number of threads.
PART = 1024


def append(
    kernels: Kernels, new: Tensor, buffer: Tensor, positions: Tensor, scales: Tensor | None = None
) -> Tensor | None:
    """Write new keys or values, (B, K, T, P), into the slots of a cache buffer, (B, K, S, P).

    The slot of a token is its position modulo S. Returns the buffer, or None for unsupported data types.

    Args:
        scales: factors of an int8 buffer, (B, K, S, 1), which are written too (None: numbers are stored as they are).
    """
    stored = CACHED if scales is None else (torch.int8,)
    if new.dtype not in FLOATS or buffer.dtype not in stored or new.stride(-1) != 1 or buffer.stride(-1) != 1:
        return None
    batch, heads, length, features = new.shape
    fields = {
        "buffer": buffer, "added": new, "positions": positions, "batch": batch, "heads": heads, "added_places": length,
        "features": features, "places": buffer.shape[2], "positions_strides": _strides_of_positions(positions),
    }  # fmt: skip
    entry = Append(**fields) if scales is None else AppendScaled(**fields, scales=scales)
    kernels.emit(entry, serial=new.numel() <= SERIAL)
    return buffer


@without_context
def copy_places(kernels: Kernels, keys: Tensor, values: Tensor, sources: Tensor, starts: Tensor, ends: Tensor) -> bool:
    """Copy cache slots from one sequence of the batch to another.

    Args:
        kernels: omit; see `without_context`.
        keys: (B, K, S, P).
        values: (B, K, S, Q).
        sources: index of the sequence that each sequence copies from, (B,); a source is not written to.
        starts: first slot to copy for each sequence, (B,).
        ends: end of the slots to copy, exclusive, (B,); nothing is copied if it is not above `starts`.

    Returns:
        Whether the slots were copied; False if the kernels are missing or do not support the layout.
    """
    places_are_joined = all(x.stride()[2:] == (x.shape[3], 1) and x.device.type == "cpu" for x in (keys, values))
    if library() is None or not places_are_joined:
        return False
    keys_strides, values_strides = (tuple(n * x.itemsize for n in x.stride()[:3]) for x in (keys, values))
    entry = CopyPlaces(
        keys=keys,
        values=values,
        sources=sources,
        starts=starts,
        ends=ends,
        rows=len(keys),
        heads=keys.shape[1],
        places=keys.shape[2],
        keys_strides=keys_strides,
        values_strides=values_strides,
    )
    kernels.emit(entry)
    return True


def attend(
    kernels: Kernels,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    positions: Tensor | None = None,
    window: int = 0,
    is_ring: bool = False,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    mask: Tensor | None = None,
    second: tuple[Tensor, Tensor] | None = None,
    distances: Tensor | None = None,
    scales: tuple[Tensor, ...] = (),
) -> Tensor | None:
    """Emit softmax(scale q k^T) v for few queries; None if the kernel does not support a data type or layout.

    Args:
        kernels: receives the operation.
        q: queries, (B, H, T, P).
        keys: (B, K, S, P).
        values: (B, K, S, Q).
        scale: factor of the scores.
        positions: positions of the queries, (B or 1, T); a query sees the slots up to its position. None: all S slots.
        window: positions that a query sees, itself included; 0: all.
        is_ring: the buffers are ring buffers, whose slots are all within the window.
        softcap: c of c tanh(score / c).
        slopes: slopes of ALiBi, (H,).
        sinks: logits that take a share of the attention weights, (H,).
        mask: (B or 1, H or 1, T, S); bool, False where a query must not see a key, or numbers added to the scores.
        second: further queries and keys, whose products are added to the scores.
        distances: (1, H, 1, S), instead of a mask: numbers added to the scores of a query in the last slot; an earlier
            query gets the numbers of the same distances.
        scales: factors of keys, values and further keys of int8, (B, K, S, 1) each.
    """
    batch, heads, length, features = q.shape
    mask = mask if distances is None else distances
    caches = [keys, values, *([] if second is None else [second[1]])]
    floats = [tensor for tensor in (slopes, sinks) if tensor is not None]
    others = [*caches, q, *([] if second is None else [second[0]]), *floats]
    if too_many(kernels, batch * length, q.dtype) or any(cache.dtype != keys.dtype for cache in caches):
        return None
    if q.dtype not in FLOATS or keys.dtype not in CACHED or any(tensor.stride(-1) != 1 for tensor in others):
        return None
    if any(tensor.dtype != torch.float32 for tensor in floats):
        return None
    if (
        (mask is not None and mask.dtype not in TYPES)
        or not keys.shape[2]
        or bool(scales) != (keys.dtype == torch.int8)
    ):
        return None
    keys_scales, values_scales, keys2_scales = (*scales, None, None, None)[:3]
    value_features = values.shape[3]
    # (B, H, T, Q) in the layout (B, T, H, Q), so that merging the heads is a view
    y = torch.empty(batch, length, heads, value_features, dtype=q.dtype).transpose(1, 2)
    num_parts = -(-keys.shape[2] // PART)
    parts = torch.empty(batch, heads, length, num_parts, value_features + 2) if num_parts > 1 else None
    q2, keys2 = second or (None, None)
    masks = (0,) * 4 if mask is None else mask.expand(batch, heads, length, keys.shape[2]).stride()
    entry = Attend(
        y=y if parts is None else parts, q=q, keys=keys, values=values, positions=positions, slopes=slopes, sinks=sinks,
        mask=mask, q2=q2, keys2=keys2, keys_scales=keys_scales, values_scales=values_scales, keys2_scales=keys2_scales,
        batch=batch, heads=heads, key_heads=keys.shape[1], queries=length, places=keys.shape[2], features=features,
        value_features=value_features, features2=0 if q2 is None else q2.shape[3],
        positions_strides=_strides_of_positions(positions), y_strides=y.stride(), mask_strides=masks, window=window,
        part=PART, scale=scale, softcap=softcap or 0.0, y_type=y.dtype, cache_type=keys.dtype, is_ring=is_ring,
        is_by_distance=distances is not None,
    )  # fmt: skip
    kernels.emit(entry)
    if parts is not None:
        joined = JoinParts(
            y=y, parts=parts, sinks=sinks, batch=batch, heads=heads, queries=length, count=num_parts,
            features=value_features,
        )  # fmt: skip
        kernels.emit(joined)
    return y


def _strides_of_positions(positions: Tensor | None) -> tuple[int, int]:
    if positions is None:
        return 0, 0
    return positions.stride(0) if positions.shape[0] > 1 else 0, positions.stride(1)  # 0: shared by all sequences
