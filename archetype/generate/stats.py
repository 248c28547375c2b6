"""Counters of an engine, and the memory used by its requests."""

from dataclasses import dataclass
from typing import NamedTuple

from archetype.generate.request import Request
from archetype.generate.slots import Slots
from archetype.nn.cache import BlockState


@dataclass(frozen=True)
class Stats:
    """Counters of an engine since its start."""

    waiting: int  # requests whose prefill has not started
    running: int  # requests being prefilled or decoded
    finished: int  # requests that have ended for any reason
    prompt_tokens: int  # of all requests started
    cached_tokens: int  # prompt tokens copied from a cached prefix or source
    generated_tokens: int
    steps: int
    tokens_per_second: float  # generated tokens divided by the time of all steps
    state_bytes: int  # allocated for the slots
    prefix_bytes: int  # of the prefix cache
    cache_use: float  # tokens in the slots divided by their capacity
    guessed_tokens: int  # draft tokens
    accepted_tokens: int  # draft tokens that the model accepted


class SlotInUse(NamedTuple):
    request: object  # its id
    prompt_tokens: int
    generated_tokens: int
    length: int  # cached tokens


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
