"""Attention over a cache, and the cache's new positions, as native operations."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archetype.native.library import library
from archetype.native.operation import recording
from archetype.native.products import max_rows
from archetype.native.recorder import Immediate
from archetype.native.translations import FLOATS, SERIAL, TYPES

if TYPE_CHECKING:
    from archetype.native.recorder import Recorder


def append(recorder: "Recorder | Immediate", new: Tensor, buffer: Tensor, positions: Tensor) -> Tensor | None:
    """Emit the writing of new keys or values, (B, K, T, P), into the places of a buffer, (B, K, S, P).

    A place is a position modulo S. Returns the buffer; None for types that the kernel does not know.
    """
    if new.dtype not in FLOATS or buffer.dtype not in FLOATS or new.stride(-1) != 1 or buffer.stride(-1) != 1:
        return None
    batch, heads, length, features = new.shape
    rows = positions.stride(0) if positions.shape[0] > 1 else 0  # one row of positions may stand for all
    strides = [*new.stride()[:3], *buffer.stride()[:3], rows, positions.stride(1)]
    integers = [batch, heads, length, features, buffer.shape[2], *strides, TYPES[new.dtype], TYPES[buffer.dtype]]
    recorder.emit("append", [buffer], [new, buffer, positions], integers, serial=new.numel() <= SERIAL)
    return buffer


def copy_places(keys: Tensor, values: Tensor, sources: Tensor, starts: Tensor, ends: Tensor) -> bool:
    """Put the places of other rows of a cache in place of a row's own.

    Args:
        keys: (B, K, S, P).
        values: (B, K, S, Q).
        sources: of each row, the one that is read, (B,); into a source nothing is written.
        starts: the first place of each copy, (B,).
        ends: the place after the last; none is copied where the first is not before it.

    Returns:
        Whether it was done: not where the kernels are missing, or for another layout.
    """
    kernels = library()
    places_are_joined = all(x.stride()[2:] == (x.shape[3], 1) and x.device.type == "cpu" for x in (keys, values))
    if kernels is None or not places_are_joined:
        return False
    integers = [len(sources), keys.shape[1]]
    for buffer in (keys, values):
        integers += [stride * buffer.itemsize for stride in buffer.stride()[:3]]
    emitter = recording() or Immediate(kernels)
    emitter.emit("copy_places", [keys, values], [keys, values, sources, starts, ends], integers)
    return True


def attend(
    recorder: "Recorder",
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
) -> Tensor | None:
    """Emit softmax(scale q k^T) v for few queries; None for types or layouts that the kernel does not know.

    Args:
        recorder: by which.
        q: queries, (B, H, T, P).
        keys: (B, K, S, P).
        values: (B, K, S, Q).
        scale: factor of the scores.
        positions: of the queries, (b, T): places up to them are read; None: all S.
        window: how many places back are read; 0: all.
        is_ring: the buffers are rings, whose places all hold positions within the window.
        softcap: c of c tanh(score / c).
        slopes: (H,), by which scores fall with the distance.
        sinks: (H,), logits that take a share of the weights.
        mask: (b, h, T, S): False where a pair is not allowed, or numbers that are added.
        second: further queries and keys whose products are added to the scores.
        distances: (1, H, 1, S), in place of a mask: numbers that are added to the scores of a query at the last place,
            and to those of an earlier one by the same distances.
    """
    batch, heads, length, features = q.shape
    mask = mask if distances is None else distances
    caches = [keys, values, *([] if second is None else [second[1]])]
    floats = [tensor for tensor in (slopes, sinks) if tensor is not None]
    others = [*caches, q, *([] if second is None else [second[0]]), *floats]
    if batch * length > max_rows(q.dtype) or any(cache.dtype != keys.dtype for cache in caches):
        return None
    if not {q.dtype, keys.dtype} <= set(FLOATS) or any(tensor.stride(-1) != 1 for tensor in others):
        return None
    if any(tensor.dtype != torch.float32 for tensor in floats):
        return None
    if mask is not None and mask.dtype not in TYPES:
        return None
    y = torch.empty(batch, length, heads, values.shape[3], dtype=q.dtype).transpose(1, 2)  # as merged next
    q2, keys2 = second or (None, None)
    where = [0, 0] if positions is None else [positions.stride(0) if positions.shape[0] > 1 else 0, positions.stride(1)]
    masks = (0,) * 4 if mask is None else mask.expand(batch, heads, length, keys.shape[2]).stride()
    strides = [_strides(q), _strides(q2), _strides(keys), _strides(keys2), _strides(values), where, _strides(y), masks]
    types = [TYPES[(q if tensor is None else tensor).dtype] for tensor in (q, keys, y, mask)]
    further = 0 if q2 is None else q2.shape[3]
    sizes = [batch, heads, keys.shape[1], length, keys.shape[2], features, values.shape[3], further]
    integers = [
        *sizes,
        *(stride for group in strides for stride in group),
        *types,
        window,
        is_ring,
        distances is not None,
    ]
    pointers = [q, keys, values, positions, y, slopes, sinks, mask, q2, keys2]
    recorder.emit("attend", [y], pointers, integers, [scale, softcap or 0.0])
    return y


def _strides(tensor: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if tensor is None else tensor.stride()[:3]
