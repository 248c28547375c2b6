"""Slots: the rows of one state, of which those in use stand in front; and states of texts that others begin with."""

import torch
from torch import Tensor

from archetype.generate.request import Request
from archetype.generate.step import DecodeStep, verify
from archetype.models import CausalModel
from archetype.nn.cache import State

MIN_SHARED = 16  # tokens: a shorter beginning is read again


class Slots:
    """The requests that are decoded together, each in a row of one state.

    A step has 1, 2, 4, 8, ... rows, the fewest that hold all requests, so that few shapes are in use. The state grows
    with what is asked for, and never shrinks.

    Args:
        model: in evaluation mode.
        limit: the most requests.
    """

    def __init__(self, model: CausalModel, limit: int) -> None:
        self.model, self.limit = model, limit
        self.requests: list[Request] = []
        self.state = model.new_state(1, 1)
        self._steps: dict[int, DecodeStep] = {}

    @torch.inference_mode()
    def reserve(self, rows: int, capacity: int) -> None:
        """Make the state large enough for so many requests, and for so many tokens of each."""
        rows, state = max(self._bucket(rows), len(self.state.lengths)), self.state
        if rows == len(state.lengths) and capacity <= state.capacity:
            return
        if capacity > state.capacity:
            capacity = max(capacity, min(2 * state.capacity, self.model.spec.context_length))
        self.state, self._steps = self.model.new_state(rows, max(capacity, state.capacity)), {}
        if count := len(self.requests):
            self.state.insert(self._rows(*range(count)), state.first_rows(count))

    @torch.inference_mode()
    def join(self, request: Request, state: State) -> None:
        """Give a request that was prefilled a row; `reserve` has made room for it."""
        self.state.insert(self._rows(len(self.requests)), state)
        self.requests.append(request)

    @torch.inference_mode()
    def leave(self, request: Request) -> None:
        """Let a request go; the last one takes its row."""
        row, last = self.requests.index(request), self.requests.pop()
        if last is not request:
            self.state.insert(self._rows(row), self.copy(len(self.requests)))
            self.requests[row] = last
        self.state.lengths[len(self.requests)] = 0

    @torch.inference_mode()
    def clear(self, request: Request) -> None:
        """Remove numbers that are not finite: what is masked is multiplied by zero, which leaves them as they are."""
        fresh = self.model.new_state(1, self.state.capacity)
        self.state.insert(self._rows(self.requests.index(request)), fresh)

    @torch.inference_mode()
    def copy(self, row: int, length: int | None = None) -> State:
        """What a row has read, or the first tokens of it, as a state of its own."""
        length = int(self.state.lengths[row]) if length is None else length
        state = self.state.narrow(length).select(self._rows(row))
        if not state.can_shorten:
            state.capacity = self.state.capacity  # which decides what kind of buffer a window has
        return state

    @torch.inference_mode()
    def step(self, newest: list[int]) -> Tensor:
        """Logits of each request's next token after its newest, (rows in use, V)."""
        count = len(self.requests)
        rows = self._bucket(count)
        if rows not in self._steps:
            self._steps[rows] = DecodeStep(self.model, self.state.first_rows(rows))
        self.state.lengths[count:] = 0  # rows without a request stay at their start
        tokens = torch.tensor(newest + [0] * (rows - count), device=self.model.device)
        return self._steps[rows](tokens[:, None])[:count]

    def _rows(self, *rows: int) -> Tensor:
        return torch.tensor(rows, device=self.model.device)

    @torch.inference_mode()
    def verify(self, proposals: list[list[int]]) -> Tensor:
        """Logits after each request's newest token and after each of the tokens proposed, (rows in use, T, V)."""
        tokens = [[request.window[-1], *more] for request, more in zip(self.requests, proposals, strict=True)]
        return verify(self.model, tokens, self.state.first_rows(len(tokens)))

    @torch.inference_mode()
    def shorten(self, lengths: list[int]) -> None:
        """Go back to where each request's row had read so many tokens."""
        self.state.lengths[: len(lengths)] = torch.tensor(lengths, device=self.model.device)

    def _bucket(self, count: int) -> int:
        """The number of rows of a step for so many requests."""
        return min(self.limit, 1 << max(count - 1, 0).bit_length())


class PrefixCache:
    """States of texts that were read, for texts that begin with them; the least recently used leave first.

    Args:
        max_bytes: of all states together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._states: dict[tuple[int, ...], State] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in self._states.values())

    def put(self, tokens: list[int], state: State) -> None:
        """Remember the state after a text; from then on nobody writes to it."""
        key = tuple(tokens)
        if len(key) < MIN_SHARED or state.nbytes > self.max_bytes:
            return
        if state.can_shorten:  # it serves for its beginnings too
            self._states = {other: known for other, known in self._states.items() if key[: len(other)] != other}
        self._states.pop(key, None)
        self._states[key] = state
        while self.nbytes > self.max_bytes:
            del self._states[next(iter(self._states))]

    def longest(self, tokens: list[int]) -> tuple[int, State | None]:
        """How many tokens of a text, less than all, a remembered state can give, and this state."""
        shared = [(shared_length(tokens, read, state.can_shorten), read) for read, state in self._states.items()]
        count, read = max(shared, default=(0, ()))
        if not count:
            return 0, None
        self._states[read] = state = self._states.pop(read)  # now the most recently used
        return count, state


def shared_length(tokens: list[int], read: tuple[int, ...] | list[int], can_shorten: bool) -> int:
    """How many tokens of a text, at least its last one left to read, the state after `read` can give."""
    count = next((n for n, pair in enumerate(zip(tokens, read, strict=False)) if pair[0] != pair[1]), None)
    count = min(len(tokens), len(read)) if count is None else count
    if can_shorten:
        count = min(count, len(tokens) - 1)
    elif count < len(read) or count == len(tokens):
        return 0
    return count if count >= MIN_SHARED else 0
