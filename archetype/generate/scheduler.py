"""Scheduling of requests: slots, chunked prefill, prefix cache, speculative decoding."""

from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from math import isfinite

import torch
from torch import Tensor

from archetype.errors import ArchetypeError
from archetype.generate.filters import largest
from archetype.generate.finite import check_finite
from archetype.generate.reader import StepReader, TextReader, reads_by_steps
from archetype.generate.request import Event, Logprobs, Request
from archetype.generate.sample import sample
from archetype.generate.slots import MIN_SHARED, PrefixCache, Slots, copy_rows, shared_length
from archetype.generate.speculate import Speculator
from archetype.generate.step import PREFILL_CHUNK
from archetype.models.build import GenerativeModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.state import State

AHEAD = 512  # tokens reserved in a request's row at first


@dataclass
class Prefill:
    # the request being prefilled, and its reader (None until its source has been encoded)

    request: Request
    reader: TextReader | None


class Scheduler:
    """Requests of an engine and their states. Not thread-safe.

    Args:
        slots: maximal number of requests that are decoded together.
        prefix_bytes: memory of the prefix cache; for an encoder-decoder, of the states of encoded sources.
        speculator: proposes draft tokens (None: no speculation).
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
        self._row: tuple[StepReader, tuple[int, int]] | None = None  # for deterministic models: reader, slots' sizes
        self._has_source = model.spec.reads_source
        self._rereads_past = model.spec.rereads_past
        self._suppressed = torch.tensor(suppressed, dtype=torch.long, device=model.device)

    def _new_slots(self, limit: int) -> Slots[Request]:
        return Slots(self.model, limit) if self._speculator is None else self._speculator.new_slots(self.model, limit)

    @property
    def num_running(self) -> int:
        return len(self.slots.sequences) + (self._reading is not None)

    def remove(self, request: Request) -> None:
        """Remove a request in any state: waiting, being prefilled, or being decoded."""
        if request in self.slots.sequences:
            self._leave(request)
        elif self._reading is not None and self._reading.request is request:
            reader, self._reading = self._reading.reader, None
            if reader is not None and self.slots.is_in_place(reader.state):
                self.slots.clear(0)  # what was read may contain NaN
        else:
            self.waiting.remove(request)

    def clear(self) -> None:
        """Remove all requests and replace the state, which may be inconsistent after an error."""
        self.slots, self._reading = self._new_slots(self.slots.limit), None
        self.waiting.clear()
        if self._speculator is not None:
            self._speculator.clear()

    def decode(self, events: list[Event]) -> None:
        """Decode one token for every request in a slot, or more if draft tokens are accepted."""
        # a paused request leaves its slot, and will be prefilled again
        for request in [request for request in self.slots.sequences if request.is_paused]:
            self._leave(request)
            self.waiting.append(request)
        if not (requests := list(self.slots.sequences)):
            return
        longest = max(len(request.window) for request in requests)
        limit = min(self.speculative_tokens, self.model.spec.context_length - longest)  # drafts must fit the context
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
        # Accept draft tokens while they match, and return the last event of each request.
        # logits: (rows, 1 + longest draft, V); logits[:, n] predict the token after the newest token and n draft tokens
        logits = self.slots.verify(
            [[request.window[-1], *draft] for request, draft in zip(requests, guesses, strict=True)]
        )
        started = [len(request.window) for request in requests]
        lengths = list(started)  # cache length of each row after the step: up to the last accepted token
        last: dict[int, Event] = {}
        going = list(range(len(requests)))  # rows whose draft tokens have all matched so far
        for position in range(logits.shape[1]):
            # Even if all draft tokens are rejected, each row gets one token, as in a step without speculation.
            for row, event in zip(
                going, self._choose(logits[going, position], [requests[n] for n in going]), strict=True
            ):
                events.append(event)
                last[row] = event
            # A row goes on only if the token just chosen equals the next draft token: the next logits were computed
            # after that draft token, and are wrong after any other.
            going = [
                row
                for row in going
                if last[row].finish_reason is None and guesses[row][position : position + 1] == [last[row].token]
            ]
            for row in going:
                lengths[row] += 1
            if not going:
                break
        # remove rejected draft tokens from the cache, by its length: later tokens overwrite their slots
        self.slots.shorten(lengths)
        self.guessed_tokens += sum(map(len, guesses))
        self.accepted_tokens += sum(lengths) - sum(started)
        return [last[row] for row in range(len(requests))]

    def read(self, limit: int, events: list[Event]) -> None:
        """Prefill chunks of the waiting prompts.

        Args:
            limit: number of tokens in all chunks, sources included; at least one chunk is read.
            events: events of this step; the first token of each completed prompt is appended.
        """
        num_read = 0
        while (reading := self._next()) is not None:
            request, start = reading.request, 0 if reading.reader is None else reading.reader.num_read
            piece = request.window[start : start + chunk_size(self.model, request.window)]
            size = len(piece) + (len(request.prompt) if reading.reader is None else 0)
            if num_read and num_read + size > limit:
                return  # running requests get their next token first
            num_read += size
            reading.reader = reading.reader or self._read_source(request)
            logits = reading.reader(piece, last_only=True)
            if reading.reader.num_read == len(request.window):
                self._reading = None
                self._start(request, logits, reading.reader.state, events)

    def _next(self) -> Prefill | None:
        # continue the prefill in progress; else begin the prefill of a waiting request, if a slot is free
        if self._reading is None and (request := self._first()) is not None:
            self.waiting.remove(request)
            self._reading = self._begin(request)
        return self._reading

    def _first(self) -> Request | None:
        # A free slot goes to the earliest request of the group with the fewest slots. A group never holds all slots if
        # there are several, so that a short request need not wait until a group of long ones has finished.
        if not self.waiting or len(self.slots.sequences) >= self.slots.limit:
            return None
        held = Counter(request.group for request in self.slots.sequences if request.group is not None)
        most = max(1, self.slots.limit - 1)
        # a copy, since other threads submit requests during a step
        able = (request for request in [*self.waiting] if not request.is_paused and held[request.group] < most)
        return min(able, key=lambda request: held[request.group], default=None)

    def _begin(self, request: Request) -> Prefill:
        # also reserve room for the requests that will follow, so that the state is copied only once
        upcoming = [request, *self.waiting][: self.slots.limit - len(self.slots.sequences)]
        context = self.model.spec.context_length
        capacity = max(min(context, len(other.window) + min(other.left, AHEAD)) for other in upcoming)
        source_length = max(len(other.prompt) for other in upcoming) if self._has_source else 1
        self.slots.reserve(len(self.slots.sequences) + len(upcoming), capacity, source_length)
        num_read, prefix = (0, self.prefixes.get(request.prompt)) if self._has_source else self._prefix(request.window)
        num_cached = len(request.prompt) if self._has_source and prefix is not None else num_read
        if not request.is_started:
            request.is_started, request.num_cached = True, num_cached
            self.prompt_tokens += len(request.prompt)
            self.cached_tokens += num_cached
        is_unread = self._has_source and prefix is None
        return Prefill(request, None if is_unread else self._reader(request, prefix, num_read))

    def _reader(self, request: Request, prefix: State | None, num_read: int = 0) -> TextReader:
        if reads_by_steps(self.model):
            # The recorded steps of a reader are bound to its row, so one row reads all prompts, one after another.
            if self._row is None or self._row[1] != self.slots.sizes:
                row = self.slots.empty_state(1, self.slots.state.capacity)
                self._row = StepReader(self.model, row), self.slots.sizes
            self._row[0].begin(self.slots.empty_state(1, 1) if prefix is None else prefix, num_read)
            return self._row[0]
        if (state := self.slots.begin_in_place(prefix)) is None:
            length = len(request.window)
            state = self.slots.empty_state(1, length if prefix is None else max(length, prefix.capacity))
            if prefix is not None:
                state.insert(torch.tensor([0], device=self.model.device), prefix)
        return TextReader(self.model, state, num_read)

    def _read_source(self, request: Request) -> TextReader:
        # encodes the source, and returns the reader of the target
        assert isinstance(self.model, EncoderDecoder)
        source = self.model.new_state(torch.tensor([request.prompt], device=self.model.device), capacity=1)
        self.prefixes.put(request.prompt, source)
        return self._reader(request, source)

    def _prefix(self, tokens: list[int]) -> tuple[int, State | None]:
        if self.model.spec.follows_length:
            return 0, None
        length, state = self.prefixes.longest(tokens)
        if self.slots.state.can_shorten:
            for row, request in enumerate(self.slots.sequences):
                if (shared := shared_length(tokens, request.window[:-1], can_shorten=True)) > length:
                    length, state = shared, self.slots.copy(row, shared)
        return length, state if state is None or not state.can_shorten else state.shorten(length)

    def _start(self, request: Request, logits: Tensor, state: State, events: list[Event]) -> None:
        # logits: (1, V), after the last token of the prompt
        if not request.tokens and self._caches(request.window, state.narrow(len(request.window))):
            # The prefix cache needs a copy of a row that will read the next prompt, or that is decoded in its place.
            is_own = (self._row is None or state is not self._row[0].state) and not self.slots.is_in_place(state)
            first = torch.tensor([0], device=self.model.device)
            self.prefixes.put(request.window, state if is_own else copy_rows(state, first, len(request.window)))
        [event] = self._choose(logits, [request])
        if request.error is not None:
            self._row = None  # NaN values in masked slots would remain: 0 * NaN = NaN
            if self.slots.is_in_place(state):
                self.slots.clear(0)
        events.append(event)
        if event.finish_reason is None and not self._waits_to_be_reread(request):
            self.slots.join(request, state)

    def _caches(self, tokens: list[int], state: State) -> bool:
        # an encoder-decoder caches sources instead
        can_cache = not self._has_source and not self.model.spec.follows_length
        return can_cache and self.prefixes.takes(tokens, state)

    def _leave(self, request: Request) -> None:
        # put the state into the prefix cache, unless it may contain NaN
        slot = self.slots.sequences.index(request)
        row = self.slots.row(slot)
        tokens = request.window[: int(row.lengths)]
        if request.error is not None:
            self.slots.clear(slot)
        elif self._caches(tokens, row):
            self.prefixes.put(tokens, self.slots.copy(slot))
        self._forget(request)

    def _forget(self, request: Request) -> None:
        self.slots.leave(request)
        if self._speculator is not None:
            self._speculator.leave(request)

    def _waits_to_be_reread(self, request: Request) -> bool:
        # Prefill a sequence again if it exceeds the context (then without its oldest quarter), or has just become
        # longer than a length beyond which its cache is invalid (`Mixer.rereads_past`).
        context, length = self.model.spec.context_length, len(request.window)
        if length > context:
            request.window = request.window[-min(max(2, context * 3 // 4), context) :]
        elif length - 1 not in self._rereads_past:
            return False
        self.waiting.appendleft(request)
        return True

    def _choose(self, logits: Tensor, requests: list[Request]) -> list[Event]:
        # logits: (requests, V); if their sum is finite, all of them are
        errors = {} if isfinite(logits.sum()) else self._not_finite(logits, requests)
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
    # number of tokens that are prefilled in one pass
    return len(tokens) if model.spec.follows_length else PREFILL_CHUNK


def logprobs_of(logits: Tensor, tokens: list[int], limits: list[int | None]) -> list[Logprobs | None]:
    """Return the log-probability of each row's token and its most likely alternatives; None if not requested."""
    results: list[Logprobs | None] = [None] * len(tokens)
    for row, (token, limit) in enumerate(zip(tokens, limits, strict=True)):
        if limit is not None:
            logs = logits[row].float().log_softmax(-1)
            values, ids = largest(logs[None], limit)
            top = zip(ids[0].tolist(), values[0].tolist(), strict=True)
            results[row] = Logprobs(float(logs[token]), tuple(top))
    return results
