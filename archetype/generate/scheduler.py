"""Which requests run, and what a step brings to each: slots, prompts in chunks, shared beginnings, guesses."""

from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from archetype.errors import ArchetypeError
from archetype.generate.finite import check_finite
from archetype.generate.reader import StepReader, TextReader, reads_by_steps
from archetype.generate.request import Event, Logprobs, Request
from archetype.generate.sample import sample
from archetype.generate.slots import MIN_SHARED, PrefixCache, Slots, copy_rows, shared_length
from archetype.generate.speculate import Speculator
from archetype.generate.step import PREFILL_CHUNK
from archetype.models.build import GenerativeModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.cache import State

AHEAD = 512  # tokens for which a request's row has room at first


@dataclass
class Prefill:
    """The request whose prompt is being read, and what reads it; nothing does before its source was read."""

    request: Request
    reader: TextReader | None


class Scheduler:
    """The requests of an engine and their states; one thread at a time uses it.

    Args:
        model: in evaluation mode.
        slots: requests that are decoded together, at most.
        prefix_bytes: memory for the states of texts that later prompts may begin with, or of sources.
        suppressed: tokens that are never chosen.
        speculator: what guesses, if anything does.
        speculative_tokens: guesses in a step, at most.
    """

    def __init__(
        self,
        model: GenerativeModel,
        slots: int,
        prefix_bytes: int,
        suppressed: tuple[int, ...],
        speculator: Speculator | None,
        speculative_tokens: int,
    ) -> None:
        self.model, self.speculative_tokens = model, speculative_tokens
        self._speculator = speculator
        self.slots = self._new_slots(slots)
        self.prefixes = PrefixCache(prefix_bytes, 1 if model.spec.reads_source else MIN_SHARED)
        self.waiting: deque[Request] = deque()
        self.prompt_tokens = self.cached_tokens = self.guessed_tokens = self.accepted_tokens = 0
        self._reading: Prefill | None = None
        self._row: tuple[StepReader, tuple[int, int]] | None = None  # of a deterministic model, and its row's sizes
        self._has_source = model.spec.reads_source
        self._rereads_past = model.spec.rereads_past
        self._suppressed = torch.tensor(suppressed, dtype=torch.long, device=model.device)

    def _new_slots(self, limit: int) -> Slots[Request]:
        return Slots(self.model, limit) if self._speculator is None else self._speculator.new_slots(self.model, limit)

    @property
    def num_running(self) -> int:
        """Requests that are read or decoded."""
        return len(self.slots.texts) + (self._reading is not None)

    def remove(self, request: Request) -> None:
        """Let a request go, wherever it is."""
        if request in self.slots.texts:
            self._leave(request)
        elif self._reading is not None and self._reading.request is request:
            self._reading = None
        else:
            self.waiting.remove(request)

    def clear(self) -> None:
        """Let all go, without a look at a state of which nothing is known."""
        self.slots, self._reading = self._new_slots(self.slots.limit), None
        self.waiting.clear()
        if self._speculator is not None:
            self._speculator.clear()

    def decode(self, events: list[Event]) -> None:
        """One token more of every request in a slot, and further ones where they were guessed."""
        for request in [request for request in self.slots.texts if request.is_paused]:
            self._leave(request)
            self.waiting.append(request)
        if not (requests := list(self.slots.texts)):
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
            elif self._waits_to_be_reread(event.request):
                self._forget(event.request)

    def _verify(self, requests: list[Request], guesses: list[list[int]], events: list[Event]) -> list[Event]:
        """Choose a token after each guess that was right; the last event of each request."""
        logits = self.slots.verify([[one.window[-1], *more] for one, more in zip(requests, guesses, strict=True)])
        started = [len(request.window) for request in requests]
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

    def read(self, limit: int, events: list[Event]) -> None:
        """Read pieces of the prompts that wait.

        Args:
            limit: tokens of all pieces, sources included; but there is one piece at least.
            events: what the step has brought so far; the first token of each prompt that is read to its end is added.
        """
        num_read = 0
        while (reading := self._next()) is not None:
            request, start = reading.request, 0 if reading.reader is None else reading.reader.num_read
            piece = request.window[start : start + chunk_size(self.model, request.window)]
            size = len(piece) + (len(request.prompt) if reading.reader is None else 0)
            if num_read and num_read + size > limit:
                return
            num_read += size
            reading.reader = reading.reader or self._read_source(request)
            logits = reading.reader(piece, last_only=True)
            if reading.reader.num_read == len(request.window):
                self._reading = None
                self._start(request, logits, reading.reader.state, events)

    def _next(self) -> Prefill | None:
        """The prompt that is being read, or the first that waits where a slot is free."""
        if self._reading is None and (request := self._first()) is not None:
            self.waiting.remove(request)
            self._reading = self._begin(request)
        return self._reading

    def _first(self) -> Request | None:
        """The request that may have the free slot: of those whose groups have the fewest slots, the first to come.

        A group leaves one slot to others, so that a short request need not wait for a long answer to many.
        """
        if not self.waiting or len(self.slots.texts) >= self.slots.limit:
            return None
        held = Counter(request.group for request in self.slots.texts if request.group is not None)
        most = max(1, self.slots.limit - 1)
        able = (one for one in self.waiting if not one.is_paused and held[one.group] < most)
        return min(able, key=lambda one: held[one.group], default=None)

    def _begin(self, request: Request) -> Prefill:
        """Make room for a request, and copy what is known of its text, or of its source."""
        upcoming = [request, *islice(self.waiting, self.slots.limit - len(self.slots.texts) - 1)]
        context = self.model.spec.context_length
        capacity = max(min(context, len(one.window) + min(one.left, AHEAD)) for one in upcoming)
        source_length = max(len(one.prompt) for one in upcoming) if self._has_source else 1
        self.slots.reserve(len(self.slots.texts) + len(upcoming), capacity, source_length)
        num_read, prefix = (0, self.prefixes.get(request.prompt)) if self._has_source else self._prefix(request.window)
        num_cached = len(request.prompt) if self._has_source and prefix is not None else num_read
        if not request.is_started:
            request.is_started, request.num_cached = True, num_cached
            self.prompt_tokens += len(request.prompt)
            self.cached_tokens += num_cached
        is_unread = self._has_source and prefix is None
        return Prefill(request, None if is_unread else self._reader(request, prefix, num_read))

    def _reader(self, request: Request, prefix: State | None, num_read: int = 0) -> TextReader:
        """What reads a request's text in a row with room for it, after what is known of it."""
        if reads_by_steps(self.model):
            if self._row is None or self._row[1] != self.slots.sizes:
                row = self.slots.empty_state(1, self.slots.state.capacity)
                self._row = StepReader(self.model, row), self.slots.sizes
            self._row[0].begin(self.slots.empty_state(1, 1) if prefix is None else prefix, num_read)
            return self._row[0]
        length = len(request.window)
        state = self.slots.empty_state(1, length if prefix is None else max(length, prefix.capacity))
        if prefix is not None:
            state.insert(torch.tensor([0], device=self.model.device), prefix)
        return TextReader(self.model, state, num_read)

    def _read_source(self, request: Request) -> TextReader:
        """What reads a request's target, whose source was read."""
        assert isinstance(self.model, EncoderDecoder)
        source = self.model.new_state(torch.tensor([request.prompt], device=self.model.device), capacity=1)
        self.prefixes.put(request.prompt, source)
        return self._reader(request, source)

    def _prefix(self, tokens: list[int]) -> tuple[int, State | None]:
        """How many tokens of a text are known, in a slot or among the states that are remembered, and their state."""
        if self.model.spec.follows_length:
            return 0, None
        length, state = self.prefixes.longest(tokens)
        if self.slots.state.can_shorten:
            for row, request in enumerate(self.slots.texts):
                if (shared := shared_length(tokens, request.window[:-1], can_shorten=True)) > length:
                    length, state = shared, self.slots.copy(row, shared)
        return length, state if state is None or not state.can_shorten else state.shorten(length)

    def _start(self, request: Request, logits: Tensor, state: State, events: list[Event]) -> None:
        """Choose the first token of a prompt that was read to its end, and give the request a slot.

        Args:
            request: whose prompt it is.
            logits: after the prompt, (1, V).
            state: likewise.
            events: what the step has brought so far; that of the first token is added.
        """
        if not request.tokens and self._remembers_texts:
            is_own = self._row is None or state is not self._row[0].state
            first = torch.tensor([0], device=self.model.device)
            self.prefixes.put(request.window, state if is_own else copy_rows(state, first, len(request.window)))
        [event] = self._choose(logits, [request])
        if request.error is not None:
            self._row = None  # what is masked is multiplied by zero, which leaves what is no number
        events.append(event)
        if event.finish_reason is None and not self._waits_to_be_reread(request):
            self.slots.join(request, state)

    @property
    def _remembers_texts(self) -> bool:
        """Whether the state after a text can serve another; an encoder-decoder remembers sources instead."""
        return not self._has_source and not self.model.spec.follows_length

    def _leave(self, request: Request) -> None:
        """Let a request go from its slot; the state of its text is remembered."""
        if request.error is not None:
            self.slots.clear(request)
        elif self.prefixes.max_bytes and self._remembers_texts:
            state = self.slots.copy(self.slots.texts.index(request))
            self.prefixes.put(request.window[: int(state.lengths)], state)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        self.slots.leave(request)
        if self._speculator is not None:
            self._speculator.leave(request)

    def _waits_to_be_reread(self, request: Request) -> bool:
        """Queue a sequence to be read again: without its oldest quarter if too long, whole if its positions ask."""
        context, length = self.model.spec.context_length, len(request.window)
        if length > context:
            request.window = request.window[-min(max(2, context * 3 // 4), context) :]
        elif length - 1 not in self._rereads_past:
            return False
        self.waiting.appendleft(request)
        return True

    def _choose(self, logits: Tensor, requests: list[Request]) -> list[Event]:
        """The next token of each request, from logits (requests, V)."""
        errors = {} if bool(logits.sum().isfinite()) else self._not_finite(logits, requests)
        allowed = logits.index_fill(1, self._suppressed, -torch.inf) if len(self._suppressed) else logits
        tokens = sample(allowed, [request.sampler for request in requests])
        logprobs = logprobs_of(logits, tokens, [request.num_logprobs for request in requests])
        events = []
        for request, token, of_token in zip(requests, tokens, logprobs, strict=True):
            request.error = errors.get(request) or request.sampler.error
            events.append(request.choose(token, of_token) if request.error is None else request.finish("error"))
        return events

    def _not_finite(self, logits: Tensor, requests: list[Request]) -> dict[Request, ArchetypeError]:
        errors = {}
        for row, request in enumerate(requests):
            inputs = {"source": torch.tensor([request.prompt], device=self.model.device)} if self._has_source else {}
            rerun = partial(self.model, torch.tensor([request.window], device=self.model.device), **inputs)
            try:
                check_finite(logits[row], self.model, rerun)
            except ArchetypeError as error:
                errors[request] = error
        return errors


def chunk_size(model: GenerativeModel, tokens: list[int]) -> int:
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
