"""Which requests run, and what a step brings to each: slots, prompts in chunks, shared beginnings, guesses."""

from collections import deque
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from archetype.errors import ArchetypeError
from archetype.generate.finite import check_finite
from archetype.generate.request import Event, Logprobs, Request
from archetype.generate.sample import sample
from archetype.generate.slots import PrefixCache, Slots, shared_length
from archetype.generate.speculate import Speculator
from archetype.generate.step import PREFILL_CHUNK
from archetype.models import CausalModel
from archetype.nn.cache import State

AHEAD = 512  # tokens for which a request's row has room at first


@dataclass
class Prefill:
    """The request whose prompt is being read, and how far."""

    request: Request
    state: State
    num_read: int


class Scheduler:
    """The requests of an engine and their states; one thread at a time uses it.

    Args:
        model: in evaluation mode.
        slots: requests that are decoded together, at most.
        prefix_bytes: memory for the states of texts that later prompts may begin with.
        speculator: what guesses, if anything does.
        speculative_tokens: guesses in a step, at most.
    """

    def __init__(
        self, model: CausalModel, slots: int, prefix_bytes: int, speculator: Speculator | None, speculative_tokens: int
    ) -> None:
        self.model, self.speculative_tokens = model, speculative_tokens
        self.slots, self.prefixes = Slots(model, slots), PrefixCache(prefix_bytes)
        self.waiting: deque[Request] = deque()
        self.prompt_tokens = self.cached_tokens = self.guessed_tokens = self.accepted_tokens = 0
        self._reading: Prefill | None = None
        self._speculator = speculator

    @property
    def num_running(self) -> int:
        """Requests that are read or decoded."""
        return len(self.slots.requests) + (self._reading is not None)

    def remove(self, request: Request) -> None:
        """Let a request go, wherever it is."""
        if request in self.slots.requests:
            self._leave(request)
        elif self._reading is not None and self._reading.request is request:
            self._reading = None
        else:
            self.waiting.remove(request)

    def clear(self) -> None:
        """Let all go, without a look at a state of which nothing is known."""
        self.slots, self._reading = Slots(self.model, self.slots.limit), None
        self.waiting.clear()
        if self._speculator is not None:
            self._speculator.clear()

    def decode(self, events: list[Event]) -> None:
        """One token more of every request in a slot, and further ones where they were guessed."""
        if not (requests := list(self.slots.requests)):
            return
        longest = max(len(request.window) for request in requests)
        limit = min(self.speculative_tokens, self.model.spec.context_length - longest)
        guesses = self._speculator.propose(requests, limit) if self._speculator and limit > 0 else []
        self.slots.reserve(len(requests), longest + max(map(len, guesses), default=0))
        if not any(guesses):
            last = self._choose(self.slots.step([request.window[-1] for request in requests]), requests)
            events += last
        else:
            last = self._verify(requests, guesses, events)
        for event in last:
            if event.finish_reason is not None:
                self._leave(event.request)
            elif self._evict_oldest(event.request):
                self._forget(event.request)

    def _verify(self, requests: list[Request], guesses: list[list[int]], events: list[Event]) -> list[Event]:
        """Choose a token after each guess that was right; the last event of each request."""
        logits, started = self.slots.verify(guesses), [len(request.window) for request in requests]
        lengths = list(started)  # what each row has read that stays
        last: dict[int, Event] = {}
        going = list(range(len(requests)))
        for place in range(logits.shape[1]):
            for row, event in zip(going, self._choose(logits[going, place], [requests[n] for n in going]), strict=True):
                events.append(event)
                last[row] = event
            going = [
                row for row in going
                if last[row].finish_reason is None and guesses[row][place : place + 1] == [last[row].token]
            ]  # fmt: skip
            for row in going:
                lengths[row] += 1
            if not going:
                break
        self.slots.shorten(lengths)
        self.guessed_tokens += sum(map(len, guesses))
        self.accepted_tokens += sum(lengths) - sum(started)
        return [last[row] for row in range(len(requests))]

    def next_chunk(self) -> tuple[list[int], State | None]:
        """What is to be read next: of the prompt in hand, or of the first that waits where a slot is free.

        Returns:
            Token ids, and the state before them; none where nothing is to be read.
        """
        if self._reading is None and self.waiting and len(self.slots.requests) < self.slots.limit:
            self._reading = self._begin(self.waiting.popleft())
        if self._reading is None:
            return [], None
        window, start = self._reading.request.window, self._reading.num_read
        return window[start : start + chunk_size(self.model, window)], self._reading.state

    def _begin(self, request: Request) -> Prefill:
        """Make room for a request, and copy what is known of its text."""
        upcoming = [request, *islice(self.waiting, self.slots.limit - len(self.slots.requests) - 1)]
        context = self.model.spec.context_length
        capacity = max(min(context, len(one.window) + min(one.left, AHEAD)) for one in upcoming)
        self.slots.reserve(len(self.slots.requests) + len(upcoming), capacity)
        num_read, prefix = self._prefix(request.window)
        if prefix is None:
            state = self.model.new_state(1, len(request.window))
        else:
            state = self.model.new_state(1, max(len(request.window), prefix.capacity))
            state.insert(torch.tensor([0], device=self.model.device), prefix)
        if not request.is_started:
            request.is_started, request.num_cached = True, num_read
            self.prompt_tokens += len(request.prompt)
            self.cached_tokens += num_read
        return Prefill(request, state, num_read)

    def _prefix(self, tokens: list[int]) -> tuple[int, State | None]:
        """How many tokens of a text are known, in a slot or among the states that are remembered, and their state."""
        if self.model.spec.follows_length:
            return 0, None
        length, state = self.prefixes.longest(tokens)
        if self.slots.state.can_shorten:
            for row, request in enumerate(self.slots.requests):
                if (shared := shared_length(tokens, request.window[:-1], can_shorten=True)) > length:
                    length, state = shared, self.slots.copy(row, shared)
        return length, state if state is None or not state.can_shorten else state.shorten(length)

    def after_chunk(self, logits: Tensor, state: State, count: int, events: list[Event]) -> None:
        """Where a prompt is read to its end, choose the first token, and give the request a slot.

        Args:
            logits: after the chunk, (1, V).
            state: likewise.
            count: of the chunk's tokens.
            events: what the step has brought so far; that of the first token is added.
        """
        assert self._reading is not None
        request, num_read = self._reading.request, self._reading.num_read + count
        if num_read < len(request.window):
            self._reading = Prefill(request, state, num_read)
            return
        self._reading = None
        if not request.tokens and not self.model.spec.follows_length:
            self.prefixes.put(request.window, state)
        [event] = self._choose(logits, [request])
        events.append(event)
        if event.finish_reason is None and not self._evict_oldest(request):
            self.slots.join(request, state)

    def _leave(self, request: Request) -> None:
        """Let a request go from its slot; the state of its text is remembered."""
        if request.error is not None:
            self.slots.clear(request)
        elif self.prefixes.max_bytes and not self.model.spec.follows_length:
            state = self.slots.copy(self.slots.requests.index(request))
            self.prefixes.put(request.window[: int(state.lengths)], state)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        self.slots.leave(request)
        if self._speculator is not None:
            self._speculator.leave(request)

    def _evict_oldest(self, request: Request) -> bool:
        """A text whose newest token no longer fits loses its oldest quarter, and waits to be read anew."""
        context = self.model.spec.context_length
        if len(request.window) <= context:
            return False
        request.window = request.window[-min(max(2, context * 3 // 4), context) :]
        self.waiting.appendleft(request)
        return True

    def _choose(self, logits: Tensor, requests: list[Request]) -> list[Event]:
        """The next token of each request, from logits (requests, V)."""
        errors = {} if bool(logits.sum().isfinite()) else self._not_finite(logits, requests)
        tokens = sample(logits, [request.sampler for request in requests])
        logprobs = logprobs_of(logits, tokens, [request.num_logprobs for request in requests])
        events = []
        for request, token, of_token in zip(requests, tokens, logprobs, strict=True):
            request.error = errors.get(request)
            events.append(request.choose(token, of_token) if request.error is None else request.finish("error"))
        return events

    def _not_finite(self, logits: Tensor, requests: list[Request]) -> dict[Request, ArchetypeError]:
        errors = {}
        for row, request in enumerate(requests):
            window = torch.tensor([request.window], device=self.model.device)
            try:
                check_finite(logits[row], self.model, lambda: self.model(window))  # noqa: B023
            except ArchetypeError as error:
                errors[request] = error
        return errors


def chunk_size(model: CausalModel, tokens: list[int]) -> int:
    """Tokens of a text that are read at once."""
    return len(tokens) if model.spec.follows_length else PREFILL_CHUNK


def logprobs_of(logits: Tensor, tokens: list[int], numbers: list[int | None]) -> list[Logprobs | None]:
    """The log-probability of one token of each row, and of so many likeliest; None where no number is given."""
    results: list[Logprobs | None] = [None] * len(tokens)
    for row, (token, number) in enumerate(zip(tokens, numbers, strict=True)):
        if number is not None:
            logs = logits[row].float().log_softmax(-1)
            values, ids = logs.topk(min(number, len(logs)))
            top = zip(ids.tolist(), values.tolist(), strict=True)
            results[row] = Logprobs(float(logs[token]), tuple(top))
    return results
