"""Counters of an engine, and the memory used by its requests."""

from dataclasses import dataclass
from typing import NamedTuple

from archetype.generate.request import Request
from archetype.generate.slots import Slots
from archetype.nn.state import BlockState


@dataclass(frozen=True)
class Stats:
    """Counters of an engine since its start.

    Attributes:
        waiting: requests whose prefill has not started.
        running: requests being prefilled or decoded.
        finished: requests that have ended for any reason.
        prompt_tokens: prompt tokens of all requests started.
        cached_tokens: of these, tokens copied from a cached prefix or source.
        tokens_per_second: generated tokens divided by the time of all steps.
        state_bytes: allocated bytes of the slots' state.
        prefix_bytes: bytes of the prefix cache.
        cache_use: tokens in the slots divided by their capacity.
        guessed_tokens: draft tokens.
        accepted_tokens: draft tokens that the model accepted.
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
    request: object  # id
    prompt_tokens: int
    generated_tokens: int
    length: int  # tokens in the cache


class Occupancy(NamedTuple):
    """Memory of the slots' state, and the requests that hold slots."""

    rows: int  # allocated
    capacity: int  # tokens allocated per row
    source_length: int  # source tokens allocated per row; 0 without sources
    layer_bytes: list[int]  # allocated for the state of each layer
    slots: list[SlotInUse]  # in slot order


def occupancy(slots: Slots[Request]) -> Occupancy:
    state, lengths = slots.state, slots.state.lengths.tolist()
    in_use = [
        SlotInUse(request.id, len(request.prompt), len(request.tokens), length)
        for request, length in zip(list(slots.sequences), lengths, strict=False)
    ]
    sources = (
        layer.cross.keys.shape[2] for layer in state.layers if isinstance(layer, BlockState) and layer.cross is not None
    )
    layer_bytes = [layer.nbytes for layer in state.layers]
    return Occupancy(len(lengths), state.capacity, next(sources, 0), layer_bytes, in_use)
