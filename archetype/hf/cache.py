"""The cache that transformers passes from step to step: the state of a model of any kind."""

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
# The installed transformers' name of the cache in arguments and outputs: `cache` from 5.24, which deprecates the other.
NAME = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else OLDER
LEAST = 64  # tokens of initial capacity if the length is unknown


class ArchetypeCache(Cache):
    """The state of a batch.

    Args:
        capacity: tokens to allocate (default: grows with the sequence).

    Attributes:
        state: of all layers; None before the first tokens.
        seen: columns read so far, including padding.
    """

    is_compileable = False

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(layers=[])
        self.capacity, self.seen = capacity, 0
        self.state: State | None = None

    def with_room(self, length: int, largest: int, new_state: Callable[[int], State]) -> State:
        """Return the state with room for further tokens, allocating or enlarging it if necessary.

        Args:
            length: columns to be read now.
            largest: the model's limit in tokens.
            new_state: allocates an empty state of a capacity.

        Raises:
            SpecError: the sequence would exceed the model's positions.
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
        """Store the state after further columns."""
        self.state, self.seen = state, self.seen + length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of columns read."""
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return no bound, as masks do not depend on one."""
        return -1

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Return whether anything was read."""
        return self.seen > 0

    @property
    def is_initialized(self) -> bool:
        """Whether anything was read."""
        return self.state is not None

    @property
    def max_batch_size(self) -> int:
        """Number of sequences."""
        return 0 if self.state is None else len(self.state.lengths)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the sequences, as beam search does."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences, in this order."""
        if self.state is not None:
            self.state = self.state.select(indices.to(self.state.lengths.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        if self.state is not None:
            rows = torch.arange(len(self.state.lengths), device=self.state.lengths.device)
            self.state = self.state.select(rows.repeat_interleave(repeats))

    @property
    def is_linear(self) -> list[bool]:
        """For `generate`, which would treat a purely recurrent cache differently; this one counts columns."""
        return [False]

    @property
    def is_croppable(self) -> bool:
        """Whether the last tokens can be removed."""
        return self.state is not None and self.state.can_shorten and not bool((self.state.lengths != self.seen).any())

    def crop(self, length: int) -> None:
        """Remove the last columns, such as those of a refused draft.

        Args:
            length: columns to keep; if 0 or negative, minus those to remove, as in transformers since 5.13.

        Raises:
            SpecError: a layer holds no earlier state, or sequences differ in length.
        """
        length = length if length > 0 else self.seen + length
        if self.state is None or length >= self.seen:
            return
        if not self.is_croppable:
            cause = "tokens cannot be removed from a recurrence, a window, or rows of several lengths"
            raise SpecError(NAME, cause, "generate without a draft model, or one row at a time")
        lengths = torch.full_like(self.state.lengths, length)
        self.state, self.seen = State(lengths, self.state.layers, self.state.capacity), length

    def reset(self) -> None:
        self.state, self.seen = None, 0

    def __repr__(self) -> str:
        return f"ArchetypeCache(seen={self.seen}, bytes={0 if self.state is None else self.state.nbytes})"


def cache_by_either_name(cache: Any, older: Any) -> Any:
    """Return the cache from the argument named as since transformers 5.24, or from the older one.

    Raises:
        SpecError: both are given.
    """
    if cache is not None and older is not None:
        raise SpecError(OLDER, "is given beside cache, which is another name for it", f"give {NAME} alone")
    return older if cache is None else cache


def cache_of(value: Any, use_cache: bool) -> ArchetypeCache | None:
    """Return the cache that a pass continues; a new one if `use_cache` and none is given.

    Raises:
        SpecError: the cache is of another class.
    """
    if value is None:
        return ArchetypeCache() if use_cache else None
    if not isinstance(value, ArchetypeCache):
        cause = f"is a {type(value).__name__}, but this model needs an ArchetypeCache"
        raise SpecError(NAME, cause, "pass the cache that an earlier call returned")
    return value
