"""What transformers passes from step to step: the state of a model of any kind, of constant size where it is so."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from archetype.errors import SpecError
from archetype.nn.cache import State

OLDER = "past_key_values"
# What the installed transformers calls a cache in arguments and outputs: `cache` from 5.24, which warns of the other.
NAME = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else OLDER
LEAST = 64  # tokens for which there is room at first, where nobody says how many there will be


class ArchetypeCache(Cache):
    """The state of some rows.

    Args:
        capacity: tokens for which there is to be room (absent: room grows with the text).

    Attributes:
        state: of all layers; None before the first tokens.
        seen: columns that were read, padding too.
    """

    is_compileable = False

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(layers=[])
        self.capacity, self.seen = capacity, 0
        self.state: State | None = None

    def with_room(self, length: int, largest: int, new_state: Callable[[int], State]) -> State:
        """The state with room for further tokens, which is made, or made larger, where it must be.

        Args:
            length: columns that are read now.
            largest: tokens of the longest row that the model reads.
            new_state: makes a state before the first token, of a capacity.

        Raises:
            SpecError: the text would be longer than the model's positions.
        """
        needed = self.seen + length
        if self.state is None:
            self.state = new_state(min(largest, max(needed, self.capacity or LEAST)))
        elif needed > self.state.capacity and self.state.capacity < largest:
            larger = new_state(min(largest, max(needed, 2 * self.state.capacity)))
            larger.insert(torch.arange(len(self.state.lengths), device=self.state.lengths.device), self.state)
            self.state = larger
        longest = int(self.state.lengths.max()) + length
        if longest > self.state.capacity >= largest:
            raise SpecError(NAME, f"{longest} tokens, and context_length is {largest}", "give fewer")
        return self.state

    def commit(self, state: State | None, length: int) -> None:
        """Go on from a state that has read so many further columns."""
        self.state, self.seen = state, self.seen + length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns that were read."""
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """No bound that masks are made for."""
        return -1

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether anything was read."""
        return self.seen > 0

    @property
    def is_initialized(self) -> bool:
        """Whether anything was read."""
        return self.state is not None

    @property
    def max_batch_size(self) -> int:
        """Rows."""
        return 0 if self.state is None else len(self.state.lengths)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let each row go on from another one, as beams do."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, in this order."""
        if self.state is not None:
            self.state = self.state.select(indices.to(self.state.lengths.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Let each row be several."""
        if self.state is not None:
            rows = torch.arange(len(self.state.lengths), device=self.state.lengths.device)
            self.state = self.state.select(rows.repeat_interleave(repeats))

    @property
    def is_linear(self) -> list[bool]:
        """For `generate`, which counts what was read by columns: not of a recurrence alone."""
        return [False]

    @property
    def is_croppable(self) -> bool:
        """Whether what was read last can be forgotten."""
        return self.state is not None and self.state.can_shorten and not bool((self.state.lengths != self.seen).any())

    def crop(self, length: int) -> None:
        """Forget the last columns, as a refused draft asks.

        Args:
            length: columns that stay; from 0 down those that go, as transformers counts them since 5.13.

        Raises:
            SpecError: a layer holds no earlier state, or rows differ in length.
        """
        length = length if length > 0 else self.seen + length
        if self.state is None or length >= self.seen:
            return
        if not self.is_croppable:
            cause = "what was read cannot be forgotten by a recurrence, a window, or rows of several lengths"
            raise SpecError(NAME, cause, "generate without a draft model, or one row at a time")
        lengths = torch.full_like(self.state.lengths, length)
        self.state, self.seen = State(lengths, self.state.layers, self.state.capacity), length

    def reset(self) -> None:
        """Forget everything."""
        self.state, self.seen = None, 0

    def __repr__(self) -> str:
        return f"ArchetypeCache(seen={self.seen}, bytes={0 if self.state is None else self.state.nbytes})"


def cache_by_either_name(cache: Any, older: Any) -> Any:
    """What is given under the name that a cache has since transformers 5.24, or under the older one.

    Raises:
        SpecError: both are given.
    """
    if cache is not None and older is not None:
        raise SpecError(OLDER, "is given beside cache, which is another name for it", f"give {NAME} alone")
    return older if cache is None else cache


def cache_of(value: Any, use_cache: bool) -> ArchetypeCache | None:
    """The cache that a pass goes on from; a new one where it is to leave one.

    Raises:
        SpecError: it is a cache of another kind.
    """
    if value is None:
        return ArchetypeCache() if use_cache else None
    if not isinstance(value, ArchetypeCache):
        cause = f"is a {type(value).__name__}, and this model goes on from an ArchetypeCache"
        raise SpecError(NAME, cause, "give what an earlier pass has returned")
    return value
