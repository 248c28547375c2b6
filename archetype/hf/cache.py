"""Cache for transformers that stores the decoding state of any kind of model."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from archetype.errors import SpecError
from archetype.nn.state import State

OLDER = "past_key_values"
# Name of the cache in arguments and outputs of this transformers: `cache` since 5.24, which deprecates the other.
NAME = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else OLDER
LEAST = 64  # tokens of initial capacity if the length is unknown


class ArchetypeCache(Cache):
    """Decoding state of a batch.

    Args:
        capacity: number of tokens to allocate (default: grows with the sequence).

    Attributes:
        state: state of all layers; None before the first tokens.
        seen: number of columns read so far, including padding.
    """

    is_compileable = False  # its capacity grows

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(layers=[])
        self.capacity, self.seen = capacity, 0
        self.state: State | None = None

    def with_room(self, length: int, largest: int, new_state: Callable[[int], State]) -> State:
        """Return the state with room for `length` new columns, after allocating or enlarging it if necessary.

        Args:
            largest: context length of the model.
            new_state: allocates an empty state with a given capacity.

        Raises:
            SpecError: the sequence would exceed the context length.
        """
        needed = self.seen + length
        if self.state is None:
            self.state = new_state(min(largest, max(needed, self.capacity or LEAST)))
        elif needed > self.state.capacity and self.state.capacity < largest:
            # doubled, so that a long generation copies its state a few times only
            larger = new_state(min(largest, max(needed, 2 * self.state.capacity)))
            larger.insert(torch.arange(len(self.state.lengths), device=self.state.lengths.device), self.state)
            self.state = larger
        longest = int(self.state.lengths.max()) + length  # without padding, which `seen` counts
        if longest > self.state.capacity >= largest:
            raise SpecError(NAME, f"{longest} tokens exceed context_length, {largest}", "use fewer tokens")
        return self.state

    def commit(self, state: State | None, length: int) -> None:
        self.state, self.seen = state, self.seen + length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # no bound: masks do not depend on one

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self.seen > 0

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    @property
    def max_batch_size(self) -> int:
        return 0 if self.state is None else len(self.state.lengths)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(indices.to(self.state.lengths.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            indices = torch.arange(len(self.state.lengths), device=self.state.lengths.device)
            self.state = self.state.select(indices.repeat_interleave(repeats))

    @property
    def is_linear(self) -> list[bool]:
        return [False]  # `generate` does not count columns for a purely recurrent cache, but this one needs it

    @property
    def is_croppable(self) -> bool:
        return self.state is not None and self.state.can_shorten and not bool((self.state.lengths != self.seen).any())

    def crop(self, length: int) -> None:
        """Remove the last columns, such as rejected draft tokens.

        Args:
            length: number of columns to keep; if <= 0, minus the number to remove, as in transformers since 5.13.

        Raises:
            SpecError: a layer cannot return to an earlier state, or sequences differ in length.
        """
        length = length if length > 0 else self.seen + length
        if self.state is None or length >= self.seen:
            return
        if not self.is_croppable:
            cause = "tokens cannot be removed from recurrent layers, windows, or sequences of different lengths"
            raise SpecError(NAME, cause, "generate without a draft model, or one sequence at a time")
        # the tensors keep the removed tokens beyond `lengths`, where the next ones overwrite them
        lengths = torch.full_like(self.state.lengths, length)
        self.state, self.seen = State(lengths, self.state.layers, self.state.capacity), length

    def reset(self) -> None:
        self.state, self.seen = None, 0

    def __repr__(self) -> str:
        return f"ArchetypeCache(seen={self.seen}, bytes={0 if self.state is None else self.state.nbytes})"


def cache_by_either_name(cache: Any, older: Any) -> Any:
    """Return the cache passed as `cache`, or under its name before transformers 5.24. Refuse both at once."""
    if cache is not None and older is not None:
        raise SpecError(OLDER, "is another name of the argument cache", f"pass only {NAME}")
    return older if cache is None else cache


def cache_of(value: Any, use_cache: bool) -> ArchetypeCache | None:
    """Return the given cache, or a new cache if none is given and `use_cache` is set. Refuse other cache classes."""
    if value is None:
        return ArchetypeCache() if use_cache else None
    if not isinstance(value, ArchetypeCache):
        cause = f"is a {type(value).__name__}, but this model needs an ArchetypeCache"
        raise SpecError(NAME, cause, "pass the cache that an earlier call returned")
    return value
