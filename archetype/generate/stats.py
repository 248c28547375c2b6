"""The counts of an engine's work, and the memory that its requests hold."""

from dataclasses import dataclass
from typing import NamedTuple

from archetype.generate.request import Request
from archetype.generate.slots import Slots
from archetype.nn.cache import BlockState


@dataclass(frozen=True)
class Stats:
    """An engine's work so far.

    Attributes:
        waiting: requests of which nothing was read yet.
        running: requests that are read or decoded.
        finished: requests that ended, whatever the reason.
        prompt_tokens: tokens of all prompts that were begun.
        cached_tokens: of these, how many were copied from a text with the same beginning, or from the same source.
        generated_tokens: tokens chosen.
        steps: taken.
        tokens_per_second: tokens chosen, over the time of all steps.
        state_bytes: of the slots' state, as allocated.
        prefix_bytes: of the states that are remembered for prompts to come.
        cache_use: tokens in the slots, as a share of those for which there is room.
        guessed_tokens: guesses of a draft model or of prompt lookup.
        accepted_tokens: of these, how many were right.
    """

    waiting: int
    running: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    steps: int
    tokens_per_second: float
    state_bytes: int
    prefix_bytes: int
    cache_use: float
    guessed_tokens: int
    accepted_tokens: int


class SlotInUse(NamedTuple):
    """A request in a slot: its id, the tokens of its prompt, those chosen so far, and those that its state has read."""

    request: object
    prompt_tokens: int
    generated_tokens: int
    length: int


class Occupancy(NamedTuple):
    """The bytes of the slots' state, and the requests that hold slots.

    Attributes:
        rows: for which there is room.
        capacity: tokens for which each row has room.
        source_length: tokens of a source for which each row has room; 0 without sources.
        layer_bytes: of each layer's state, as allocated.
        slots: those in use, in their order.
    """

    rows: int
    capacity: int
    source_length: int
    layer_bytes: list[int]
    slots: list[SlotInUse]


def occupancy(slots: Slots[Request]) -> Occupancy:
    """The bytes of the slots' state now, and the requests that hold slots."""
    state, lengths = slots.state, slots.state.lengths.tolist()
    in_use = [
        SlotInUse(request.id, len(request.prompt), len(request.tokens), length)
        for request, length in zip(list(slots.texts), lengths, strict=False)
    ]
    sources = (
        layer.cross.keys.shape[2] for layer in state.layers if isinstance(layer, BlockState) and layer.cross is not None
    )
    layer_bytes = [layer.nbytes for layer in state.layers]
    return Occupancy(len(lengths), state.capacity, next(sources, 0), layer_bytes, in_use)
