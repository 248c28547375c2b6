"""Caches of keys and values: of all positions, of a window, and of an encoder's output.

Attention masks are computed from the positions that `append` returns, so a mixer treats full buffers and ring buffers
alike.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from archetype.native import fused
from archetype.native.attention import copy_places
from archetype.nn.context import ForwardContext, Lengths
from archetype.nn.layer_state import EMPTY_SLOT, LayerState
from archetype.nn.symbolic import is_symbolic


class KeepsKeys:
    """Base class of modules that keep keys and values of earlier positions.

    Attributes:
        cache_dtype: data type of the keys and values in new states, set by `generate.use_state_dtype` (None: the data
            type that `new_state` is called with).
    """

    cache_dtype: torch.dtype | None = None
    keeps_int8 = True  # whether `cache_dtype` may be int8


def quantized(x: Float[Tensor, "*dims P"]) -> tuple[Shaped[Tensor, "*dims P"], Float[Tensor, "*dims 1"]]:
    """Quantize vectors to int8, each with a scale that maps its largest magnitude to 127."""
    x = x.float()
    scales = x.abs().amax(-1, keepdim=True) / 127
    codes = (x / scales).round().clamp(-127, 127)
    # NaN and infinity stay visible in the scale
    return torch.where((scales > 0) & scales.isfinite(), codes, 0).to(torch.int8), scales


def dequantized(
    codes: Shaped[Tensor, "*dims P"], scales: Float[Tensor, "*dims 1"], dtype: torch.dtype
) -> Float[Tensor, "*dims P"]:
    """Return the vectors of int8 codes, rounded once to a data type."""
    return (codes * scales).to(dtype)


class KeysAndValues(LayerState):
    """Base class of states with `keys` and `values`, which have scales if they are int8."""

    keys: Shaped[Tensor, "B K S P"]
    values: Shaped[Tensor, "B K S Q"]
    key_scales: Float[Tensor, "B K S 1"] | None
    value_scales: Float[Tensor, "B K S 1"] | None

    @property
    def scales(self) -> tuple[Tensor, ...]:
        """Scales of keys and values; empty unless they are int8."""
        return () if self.key_scales is None or self.value_scales is None else (self.key_scales, self.value_scales)

    def widened(self, dtype: torch.dtype) -> tuple[Float[Tensor, "B K S P"], Float[Tensor, "B K S Q"]]:
        """Return keys and values as numbers of a data type: copies, if they are int8."""
        if not self.scales:
            return self.keys, self.values
        key_scales, value_scales = self.scales
        return dequantized(self.keys, key_scales, dtype), dequantized(self.values, value_scales, dtype)

    @staticmethod
    def _empty(
        shape: tuple[int, int, int], sizes: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> list[Tensor | None]:
        # Zeros, since attention multiplies the values of masked slots by 0, and 0 * NaN would be NaN.
        buffers: list[Tensor | None] = [torch.zeros(*shape, size, dtype=dtype, device=device) for size in sizes]
        has_scales = dtype == torch.int8
        return [*buffers, *(torch.zeros(*shape, 1, device=device) if has_scales else None for _ in sizes)]


@dataclass
class KVCache(KeysAndValues):
    """Key-value cache of full attention: slot s holds position s.

    Latent attention (MLA) stores its latent vectors as `keys` and its rotary keys as `values`, each as one head.
    """

    can_shorten: ClassVar[bool] = True
    is_ring: ClassVar[bool] = False  # whether a slot is reused by later positions
    keys: Shaped[Tensor, "B K S P"]
    values: Shaped[Tensor, "B K S Q"]
    key_scales: Float[Tensor, "B K S 1"] | None = None  # of int8
    value_scales: Float[Tensor, "B K S 1"] | None = None

    @classmethod
    def empty(
        cls, batch: int, heads: int, capacity: int, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> "KVCache":
        return cls(*cls._empty((batch, heads, capacity), sizes, dtype, device))  # type: ignore[arg-type]

    def append(
        self, keys: Float[Tensor, "B K T P"], values: Float[Tensor, "B K T Q"], context: ForwardContext
    ) -> tuple[Shaped[Tensor, "B K S P"], Shaped[Tensor, "B K S Q"], Int[Tensor, "b S"]]:
        """Write the new keys and values. Return all keys, all values, and the position stored in each slot.

        While a step is recorded, int8 is returned as it is stored, without its `scales`.
        """
        for buffer, scales, new in ((self.keys, self.key_scales, keys), (self.values, self.value_scales, values)):
            write_slots(buffer, new, context, scales)
        return *self._visible(keys.dtype, context), self.positions(context.ends)

    def _visible(self, dtype: torch.dtype, context: ForwardContext) -> tuple[Tensor, Tensor]:
        return (self.keys, self.values) if context.kernels.records else self.widened(dtype)

    def positions(self, ends: Lengths) -> Int[Tensor, "b S"]:
        # slot s holds position s in every sequence
        return torch.arange(self.keys.shape[2], device=ends.device)[None]

    def narrow(self, slots: int) -> "KVCache":
        return replace(self, **{name: value[:, :, :slots] for name, value in self._values()})

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        # the kernel copies only the slots in which a row and its source differ
        pairs = [(self.keys, self.values), *([self.scales] if self.scales else [])]
        if not all(copy_places(pair[0], pair[1], sources, starts, ends) for pair in pairs):
            super().copy_rows(sources, starts, ends)


def write_slots(
    buffer: Shaped[Tensor, "B K S P"],
    new: Shaped[Tensor, "B K T P"],
    context: ForwardContext,
    scales: Float[Tensor, "B K S 1"] | None = None,
) -> None:
    """Write each new token to the slot whose index is its position, and its scale if the buffer is int8."""
    kernels, positions = context.kernels, context.positions
    if context.num_tokens is None and fused.append(kernels, new, buffer, positions, scales) is not None:
        return
    if scales is not None:
        new, new_scales = quantized(new)
        write_slots(scales, new_scales, context)
    if torch.compiler.is_exporting():  # without an index, whose translation depends on sizes
        places, ends = torch.arange(buffer.shape[2], device=new.device), context.ends[:, None]  # (S,), (B, 1)
        write_tokens(buffer, new, torch.where(places < ends, places, -1) - context.positions[:, :1])
        return
    rows, slots = torch.arange(new.shape[0], device=new.device)[:, None], buffer.shape[2]
    written, index = new.transpose(1, 2).to(buffer.dtype), context.positions  # (B, T, K, P), (B, T)
    if context.num_tokens is not None:
        # Positions of padding may be beyond the buffer. They wrap around, and write back what is already in their slot:
        # all shapes stay static.
        inside = (index < slots)[:, :, None, None]  # (B, T, 1, 1)
        index = index % slots
        written = torch.where(inside, written, buffer[rows, :, index])
    buffer[rows, :, index] = written


def write_tokens(buffer: Shaped[Tensor, "B K S P"], new: Shaped[Tensor, "B K T P"], token: Int[Tensor, "B S"]) -> None:
    """Write to each slot the new token with a given index; a negative index keeps the old one."""
    index = token.clamp(min=0)[:, None, :, None].expand(-1, buffer.shape[1], -1, buffer.shape[3])
    chosen = new.to(buffer.dtype).gather(2, index)
    buffer.copy_(torch.where((token >= 0)[:, None, :, None], chosen, buffer))


@dataclass
class RingKVCache(KVCache):
    """Key-value cache of sliding-window attention: slot s holds the newest position p with p mod W = s."""

    can_shorten: ClassVar[bool] = False
    is_ring: ClassVar[bool] = True

    def append(
        self, keys: Float[Tensor, "B K T P"], values: Float[Tensor, "B K T Q"], context: ForwardContext
    ) -> tuple[Shaped[Tensor, "B K S P"], Shaped[Tensor, "B K S Q"], Int[Tensor, "B S"]]:
        """Return the window before this pass and the new tokens, with their positions. Store the newest W."""
        starts, ends = context.positions[:, 0], context.ends
        if not is_symbolic(keys.shape[2]) and keys.shape[2] == 1:
            # the slot of a single token held the position that has just left the window
            if not self._append_natively(keys, values, context):
                self._write(keys, values, starts, ends)
            return *self._visible(keys.dtype, context), self.positions(ends)
        # Writing several new tokens first would overwrite keys that the earlier ones of them still see. So attention
        # reads the old window, (B, K, W, P), joined with the new keys, (B, K, T, P), and the buffer is written
        # afterwards. Old positions outside a query's window are hidden by the mask, which is computed from positions.
        old_keys, old_values = self.widened(keys.dtype)
        visible = (
            torch.cat((old_keys, self._rounded(keys, old_keys.dtype)), dim=2),
            torch.cat((old_values, self._rounded(values, old_values.dtype)), dim=2),
            torch.cat((self.positions(starts), context.positions), dim=1),
        )
        self._write(keys, values, starts, ends)
        return visible

    def _append_natively(self, keys: Tensor, values: Tensor, context: ForwardContext) -> bool:
        # whether native kernels have written the single token of each sequence
        if context.num_tokens is not None:
            return False
        kernels, positions = context.kernels, context.positions
        is_done = fused.append(kernels, keys, self.keys, positions, self.key_scales) is not None
        return is_done and fused.append(kernels, values, self.values, positions, self.value_scales) is not None

    def _rounded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        # as the numbers will be read from the buffer
        return dequantized(*quantized(x), dtype) if self.scales else x.to(dtype)

    def num_shared(self, length: int) -> int:
        # as many as there are empty slots: a later token must not overwrite keys that an earlier one still sees
        return max(1, self.keys.shape[2] - length)

    def narrow(self, slots: int) -> "RingKVCache":
        # the slot of a position depends on the size W of the buffer
        return self

    def copy_rows(self, sources: Int[Tensor, "B"], starts: Int[Tensor, "B"], ends: Int[Tensor, "B"]) -> None:
        # Whole rows: slots are reused, so two rows may differ in any slot, whatever prefix their sequences share.
        LayerState.copy_rows(self, sources, starts, ends)

    def _newest(self, ends: Lengths) -> Int[Tensor, "B W"]:
        # newest position below `ends` for each slot; negative if the slot is empty
        size = self.keys.shape[2]
        slots = torch.arange(size, device=ends.device)  # (W,)
        # largest p < ends with p mod W = s: step back from ends - 1 by the distance of its slot to s, modulo W
        return ends[:, None] - 1 - (ends[:, None] - 1 - slots) % size

    def positions(self, ends: Lengths) -> Int[Tensor, "B W"]:
        """Return the position stored in each slot; `EMPTY_SLOT` if the slot is empty."""
        newest = self._newest(ends)
        return torch.where(newest < 0, EMPTY_SLOT, newest)

    def _write(self, keys: Tensor, values: Tensor, starts: Lengths, ends: Lengths) -> None:
        # (B, W) index of the new token for each slot; < 0 keeps the old one. If T > W, only the newest W tokens are
        # stored. Padding, whose positions are at or beyond `ends`, is never stored. All slots are written by one gather
        # and one `where`: rows store different numbers of tokens, and a recorded step needs static shapes.
        step = self._newest(ends) - starts[:, None]
        written = [(self.keys, keys), (self.values, values)]
        if self.scales:
            (keys, key_scales), (values, value_scales) = quantized(keys), quantized(values)
            written = [(self.keys, keys), (self.values, values)]
            written += zip(self.scales, (key_scales, value_scales), strict=True)
        for buffer, new in written:
            write_tokens(buffer, new, step)


@dataclass
class CrossKVCache(KeysAndValues):
    """Keys and values of an encoder's output, the first `num_tokens` of each sequence. Decoding only reads them."""

    keys: Shaped[Tensor, "B K S P"]
    values: Shaped[Tensor, "B K S Q"]
    num_tokens: Lengths
    key_scales: Float[Tensor, "B K S 1"] | None = None  # of int8
    value_scales: Float[Tensor, "B K S 1"] | None = None

    def num_shared(self, length: int) -> int:
        return EMPTY_SLOT  # no limit, as nothing is written

    @classmethod
    def empty(
        cls, batch: int, heads: int, length: int, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> "CrossKVCache":
        # num_tokens = 1: attention over an empty source would be NaN
        keys, values, *scales = cls._empty((batch, heads, length), sizes, dtype, device)
        return cls(keys, values, torch.ones(batch, dtype=torch.long, device=device), *scales)  # type: ignore[arg-type]

    def stored_as(self, dtype: torch.dtype) -> "CrossKVCache":
        """Return a copy in another data type, with scales if it is int8."""
        if dtype != torch.int8:
            return self.to(dtype)
        (keys, key_scales), (values, value_scales) = quantized(self.keys), quantized(self.values)
        return CrossKVCache(keys, values, self.num_tokens, key_scales, value_scales)
