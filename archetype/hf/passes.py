"""Forward passes with transformers' arguments: padding, positions, caches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.hf.cache import ArchetypeCache, cache_of
from archetype.hf.rows import Rows
from archetype.models.output import Output
from archetype.nn.context import Lengths, Vectors
from archetype.training.block_execution import blocks_of


@dataclass
class Pass:
    """Output of a forward pass over sequences that were moved to the first column.

    Attributes:
        rows: original columns of the tokens.
        cache: cache for the next pass.
        block_inputs: input of each block, if requested.
    """

    output: Output
    rows: Rows
    cache: ArchetypeCache | None = None
    block_inputs: tuple[Vectors, ...] = ()

    @property
    def hidden(self) -> Vectors:
        """Vectors that the head reads, (B, T, D), at the original columns of their tokens."""
        assert self.output.hidden is not None
        return self.rows.restored(self.output.hidden)

    @property
    def hidden_states(self) -> tuple[Vectors, ...] | None:
        """Input of each block, then the vectors that the head reads."""
        return (*map(self.rows.restored, self.block_inputs), self.hidden) if self.block_inputs else None


def read_images(network: Any, pixel_values: Tensor | None) -> Pass:
    if pixel_values is None:
        raise SpecError("pixel_values", "is missing, but this model reads images", "pass images")
    return Pass(network(pixel_values), Rows(None, None))


def read_whole(
    network: Any, tokens: Tensor, mask: Tensor | None, position_ids: Tensor | None, types: Tensor | None
) -> Pass:
    rows = Rows.of(mask, tokens.shape[1])
    if position_ids is not None:
        check_positions(position_ids, rows, None)
    types = None if types is None else rows.moved(types)
    return Pass(network(rows.moved(tokens), rows.num_tokens, types, with_logits=False), rows)


def read_on(
    network: Any,
    tokens: Tensor,
    mask: Tensor | None,
    position_ids: Tensor | None,
    types: Tensor | None,
    past: Any,
    use_cache: bool,
) -> Pass:
    """Run a causal model on new tokens after a cache, on complete sequences, or on sequences of several documents."""
    if types is not None and bool(types.any()):
        raise SpecError("token_type_ids", "are not supported by causal models", "remove them")
    rows, (batch, length) = Rows.of(mask, tokens.shape[1]), tokens.shape
    moved = rows.moved(tokens)
    if past is None and rows.num_tokens is None and (documents := documents_of(position_ids)) is not None:
        return Pass(network(moved, with_logits=False, document_ids=documents), rows)
    cache, state = cache_of(past, use_cache), None
    if cache is not None:
        state = cache.with_room(length, network.spec.context_length, lambda room: network.new_state(batch, room))
    if position_ids is not None:
        check_positions(position_ids, rows, None if state is None else state.lengths)
    output = network(moved, state, rows.num_tokens, with_logits=False)
    if cache is not None:
        cache.commit(output.state, length)
    return Pass(output, rows, cache)


def documents_of(position_ids: Tensor | None) -> Tensor | None:
    """Return the document index of each token, (B, T), if positions restart in a sequence; otherwise None."""
    if position_ids is None or not bool((starts := position_ids[:, 1:] == 0).any()):
        return None
    steps = torch.arange(position_ids.shape[1], device=position_ids.device)
    # (B, T), column of the first token of each token's document
    first = torch.where(nn.functional.pad(starts, (1, 0), value=True), steps, 0).cummax(1).values
    return nn.functional.pad(starts.long().cumsum(1), (1, 0)) if bool((steps - first == position_ids).all()) else None


def check_positions(position_ids: Tensor, rows: Rows, lengths: Lengths | None) -> None:
    steps = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    positions = rows.restored(steps if lengths is None else steps + lengths[:, None])
    differs = positions != position_ids
    if rows.num_tokens is not None:  # padding may have any position
        differs &= rows.restored(steps < rows.num_tokens[:, None])
    if bool(differs.any()):
        raise SpecError("position_ids", "differ from the indices of tokens in their sequences", "remove them")


@contextmanager
def block_inputs(network: nn.Module, is_asked: bool) -> Iterator[list[Vectors]]:
    """Collect the input of each block while the context is open, if `is_asked`."""
    seen: list[Vectors] = []

    def see(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    # a block that several layers share is hooked once, and called several times
    handles = [block.register_forward_pre_hook(see) for block in dict.fromkeys(blocks_of(network)) if is_asked]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
